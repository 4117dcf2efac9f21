//! A second, slow JSON reader that decides whether two documents are equal.
//!
//! It shares nothing with the code under test: recursive descent over the bytes, strings as UTF-16 units, numbers as
//! digits times a power of ten.

/// A document, compared by value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exact {
    Null,
    Bool(bool),
    Number(Number),
    String(Vec<u16>),
    Array(Vec<Exact>),
    /// Members sorted by name; a repeated name makes the document unreadable.
    Object(Vec<(Vec<u16>, Exact)>),
}

/// The number `digits × 10^power`, without zeros at either end of the digits; zero has no digits, no sign, power 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) digits: String,
    pub(crate) power: i128,
}

/// Returns the value of a document, or `None` if it is not JSON with one meaning for every reader.
pub(crate) fn read(body: &[u8]) -> Option<Exact> {
    let text: Vec<char> = std::str::from_utf8(body).ok()?.chars().collect();
    let mut reader = Reader { text, at: 0, depth: 0 };
    let value = reader.value()?;
    reader.space();
    (reader.at == reader.text.len()).then_some(value)
}

struct Reader {
    text: Vec<char>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        self.at += 1;
        self.text.get(self.at - 1).copied()
    }

    fn eat(&mut self, char: char) -> bool {
        let there = self.peek() == Some(char);
        self.at += usize::from(there);
        there
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str, value: Exact) -> Option<Exact> {
        word.chars().all(|char| self.take() == Some(char)).then_some(value)
    }

    fn value(&mut self) -> Option<Exact> {
        self.space();
        match self.peek()? {
            'n' => self.word("null", Exact::Null),
            't' => self.word("true", Exact::Bool(true)),
            'f' => self.word("false", Exact::Bool(false)),
            '"' => self.string().map(Exact::String),
            '[' | '{' => {
                self.depth += 1;
                if self.depth > ibid_core::fingerprint::json_exact::DEPTH_MAX {
                    return None;
                }
                let value = if self.peek() == Some('[') { self.array() } else { self.object() };
                self.depth -= 1;
                value
            }
            _ => self.number().map(Exact::Number),
        }
    }

    fn array(&mut self) -> Option<Exact> {
        self.take();
        let mut values = Vec::new();
        self.space();
        if self.eat(']') {
            return Some(Exact::Array(values));
        }
        loop {
            values.push(self.value()?);
            self.space();
            match self.take()? {
                ',' => {}
                ']' => return Some(Exact::Array(values)),
                _ => return None,
            }
        }
    }

    fn object(&mut self) -> Option<Exact> {
        self.take();
        let mut members: Vec<(Vec<u16>, Exact)> = Vec::new();
        self.space();
        if self.eat('}') {
            return Some(Exact::Object(members));
        }
        loop {
            self.space();
            let name = self.string()?;
            self.space();
            if !self.eat(':') || members.iter().any(|(other, _)| *other == name) {
                return None;
            }
            members.push((name, self.value()?));
            self.space();
            match self.take()? {
                ',' => {}
                '}' => break,
                _ => return None,
            }
        }
        members.sort();
        Some(Exact::Object(members))
    }

    fn string(&mut self) -> Option<Vec<u16>> {
        if !self.eat('"') {
            return None;
        }
        let mut units = Vec::new();
        loop {
            match self.take()? {
                '"' => break,
                '\\' => units.push(self.escape()?),
                '\0'..='\x1f' => return None,
                char => units.extend_from_slice(char.encode_utf16(&mut [0; 2])),
            }
        }
        // Strict: a lone surrogate has no meaning that readers agree on.
        String::from_utf16(&units).is_ok().then_some(units)
    }

    fn escape(&mut self) -> Option<u16> {
        Some(match self.take()? {
            char @ ('"' | '\\' | '/') => char as u16,
            'b' => 8,
            't' => 9,
            'n' => 10,
            'f' => 12,
            'r' => 13,
            'u' => {
                let mut unit = 0;
                for _ in 0..4 {
                    unit = unit * 16 + self.take()?.to_digit(16)? as u16;
                }
                unit
            }
            _ => return None,
        })
    }

    fn digits(&mut self) -> Option<String> {
        let mut digits = String::new();
        while let Some(digit @ '0'..='9') = self.peek() {
            digits.push(digit);
            self.at += 1;
        }
        (!digits.is_empty()).then_some(digits)
    }

    fn number(&mut self) -> Option<Number> {
        let negative = self.eat('-');
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        let fraction = if self.eat('.') { self.digits()? } else { String::new() };
        let mut power: i128 = 0;
        if self.eat('e') || self.eat('E') {
            let minus = self.eat('-');
            if !minus {
                self.eat('+');
            }
            let digits = self.digits()?;
            let digits = digits.trim_start_matches('0');
            // Far outside the range of any number format; the files have some of 100 digits.
            power =
                if digits.len() > 18 { i128::from(i64::MAX) } else { format!("0{digits}").parse().ok()? };
            power *= if minus { -1 } else { 1 };
        }
        Some(Number::of(negative, &format!("{whole}{fraction}"), power - fraction.len() as i128))
    }
}

impl Number {
    pub(crate) fn of(negative: bool, digits: &str, power: i128) -> Number {
        let digits = digits.trim_start_matches('0');
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Number::default();
        }
        Number {
            negative,
            digits: significant.into(),
            power: power + (digits.len() - significant.len()) as i128,
        }
    }

    /// Returns the power of ten of the first digit.
    pub(crate) fn magnitude(&self) -> i128 {
        self.power + self.digits.len() as i128 - 1
    }
}

impl Exact {
    /// Returns whether any number in the document passes the test.
    pub(crate) fn any_number(&self, test: &dyn Fn(&Number) -> bool) -> bool {
        match self {
            Exact::Number(number) => test(number),
            Exact::Array(values) => values.iter().any(|value| value.any_number(test)),
            Exact::Object(members) => members.iter().any(|(_, value)| value.any_number(test)),
            _ => false,
        }
    }
}
