//! The currencies that payments are taken in.

/// Whether this is a currency that payments are taken in, by its ISO 4217 code in capitals.
pub fn is_known(code: &str) -> bool {
    CODES.binary_search(&code).is_ok()
}

/// In order, to be searched. What is not here has no processor behind it; add it when it has one.
const CODES: [&str; 34] = [
    "AED", "AUD", "BGN", "BRL", "CAD", "CHF", "CLP", "CNY", "COP", "CZK", "DKK", "EUR", "GBP", "HKD", "HUF",
    "IDR", "ILS", "INR", "ISK", "JPY", "KRW", "MXN", "MYR", "NOK", "NZD", "PHP", "PLN", "RON", "SEK", "SGD",
    "THB", "TRY", "USD", "ZAR",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_searched() {
        assert!(CODES.is_sorted());
        assert!(CODES.iter().all(|code| is_known(code)));
        for code in ["", "eur", "EURO", "XXX", "EU", " EUR"] {
            assert!(!is_known(code), "{code}");
        }
    }
}
