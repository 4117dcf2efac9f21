//! Hexadecimal digits of bytes, written and read.

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

/// Returns the bytes that hexadecimal digits in either case stand for, two digits for each byte; `None` if the text is
/// anything else.
///
/// ```
/// assert_eq!(ibid_core::hex::decode("00A5ff"), Some(vec![0, 0xa5, 0xff]));
/// assert_eq!(ibid_core::hex::decode("+5"), None);
/// assert_eq!(ibid_core::hex::decode("00a"), None);
/// ```
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(16 * digit(*high)? + digit(*low)?).ok(),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}

/// Bytes that become digits before they are appended.
const PART: usize = 64;
