//! Hexadecimal digits of bytes.

/// Returns bytes as lower-case hexadecimal digits, two for each byte.
///
/// ```
/// assert_eq!(ibid_core::hex::encode(&[0, 0xa5, 0xff]), "00a5ff");
/// ```
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    push(&mut text, bytes);
    text
}

/// Appends bytes to `text` as lower-case hexadecimal digits, two for each byte.
pub fn push(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(2 * bytes.len());
    // In parts, because a string grows by a whole part several times faster than by single characters.
    for part in bytes.chunks(PART) {
        let mut digits = [0; 2 * PART];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(part) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        // Digits are text.
        text.push_str(str::from_utf8(&digits[..2 * part.len()]).unwrap_or_default());
    }
}

/// Bytes that become digits before they are appended.
const PART: usize = 64;
