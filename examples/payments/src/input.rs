//! What clients may ask for, read from JSON field by field, so that every mistake is named at once.
//!
//! It knows neither HTTP nor the database: bytes in, a value or a list of mistakes out.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::currency;
use crate::problem::FieldError;

/// A payment to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPayment {
    /// Whose card.
    pub customer_id: String,
    /// More than zero, in the smallest unit of the currency.
    pub amount_cents: i64,
    /// One that is known.
    pub currency: String,
}

/// A ride to be booked and paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRide {
    /// Who rides and pays, how much.
    pub payment: NewPayment,
    /// From where.
    pub origin: String,
    /// Where to.
    pub destination: String,
}

/// Why a body is not what was to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputError {
    /// Not a JSON object.
    Malformed(String),
    /// An object with wrong fields.
    Fields(Vec<FieldError>),
}

/// Something that can be asked for with a JSON body.
pub trait Input: Sized + Clone + Send + Sync + 'static {
    /// Reads it, or says all that is wrong with it.
    fn parse(body: &[u8]) -> Result<Self, InputError>;
}

impl Input for NewPayment {
    fn parse(body: &[u8]) -> Result<NewPayment, InputError> {
        let mut fields = Fields::read(body)?;
        let payment = fields.payment();
        fields.end(payment)
    }
}

impl Input for NewRide {
    fn parse(body: &[u8]) -> Result<NewRide, InputError> {
        let mut fields = Fields::read(body)?;
        let payment = fields.payment();
        let origin = fields.text("origin", PLACE_BYTES_MAX);
        let destination = fields.text("destination", PLACE_BYTES_MAX);
        let ride = || Some(NewRide { payment: payment?, origin: origin?, destination: destination? });
        fields.end(ride())
    }
}

/// The fields that are left to be read, and what was wrong with those before.
struct Fields {
    left: Vec<(String, Value)>,
    errors: Vec<FieldError>,
}

impl Fields {
    fn read(body: &[u8]) -> Result<Fields, InputError> {
        let object = serde_json::from_slice::<Object>(body);
        let Object(all) = object.map_err(|error| InputError::Malformed(error.to_string()))?;
        let mut fields = Fields { left: Vec::with_capacity(all.len()), errors: Vec::new() };
        for (name, value) in all {
            // Which of the two is meant is a guess, and another parser on the way may guess otherwise.
            if fields.left.iter().any(|(other, _)| *other == name) {
                fields.wrong::<()>(&name, "is given more than once");
            } else {
                fields.left.push((name, value));
            }
        }
        Ok(fields)
    }

    fn payment(&mut self) -> Option<NewPayment> {
        let customer_id = self.text("customerId", CUSTOMER_ID_BYTES_MAX);
        let amount_cents = self.amount("amountCents");
        let currency = self.text("currency", CURRENCY_BYTES_MAX);
        let currency = currency.filter(|code| {
            let known = currency::is_known(code);
            if !known {
                self.wrong::<()>("currency", "must be an ISO 4217 code that is known here, such as `EUR`");
            }
            known
        });
        Some(NewPayment { customer_id: customer_id?, amount_cents: amount_cents?, currency: currency? })
    }

    fn text(&mut self, name: &str, bytes_max: usize) -> Option<String> {
        match self.take(name)? {
            Value::String(text) if text.trim().is_empty() => self.wrong(name, "must not be empty"),
            Value::String(text) if text.len() > bytes_max => {
                self.wrong(name, format!("must not be longer than {bytes_max} bytes"))
            }
            // PostgreSQL can't keep a NUL, and no other control character belongs in a name.
            Value::String(text) if text.chars().any(char::is_control) => {
                self.wrong(name, "must not have control characters")
            }
            Value::String(text) => Some(text),
            _ => self.wrong(name, "must be a string"),
        }
    }

    /// A whole number as JSON writes one: `10.0` and `1e3` are refused, because what reads them as 10 today may read
    /// `10.005` as 10 as well.
    fn amount(&mut self, name: &str) -> Option<i64> {
        let Value::Number(number) = self.take(name)? else {
            return self.wrong(name, "must be a number, without quotes");
        };
        // What does not fit into 64 bits comes as a double, and so does what has a fraction.
        let double = number.as_f64().unwrap_or(f64::INFINITY);
        match number.as_i64() {
            Some(amount) if amount > 0 => Some(amount),
            Some(_) => self.wrong(name, "must be more than 0"),
            None if number.is_u64() || double >= TWO_TO_63 => self.wrong(name, "must be less than 2^63"),
            None if double <= 0.0 => self.wrong(name, "must be more than 0, without fraction or exponent"),
            None => self.wrong(name, "must be a whole number of cents, without fraction or exponent"),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        match self.left.iter().position(|(other, _)| other == name) {
            Some(at) => Some(self.left.swap_remove(at).1),
            None => self.wrong(name, "is missing"),
        }
    }

    fn wrong<T>(&mut self, name: &str, detail: impl Into<String>) -> Option<T> {
        self.errors.push(FieldError::new(name, detail));
        None
    }

    /// A field that nobody knows is most likely a known one with a slip in it, and must not be dropped in silence.
    fn end<T>(mut self, read: Option<T>) -> Result<T, InputError> {
        for (mut name, _) in std::mem::take(&mut self.left) {
            name.truncate(name.floor_char_boundary(NAME_BYTES_SHOWN));
            self.wrong::<()>(&name, "is not a field of this request");
        }
        match read {
            Some(read) if self.errors.is_empty() => Ok(read),
            _ => Err(InputError::Fields(self.errors)),
        }
    }
}

/// A JSON object with all its members, in their order, repeated ones too.
struct Object(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut all = Vec::new();
                while let Some(member) = map.next_entry()? {
                    if all.len() == FIELDS_MAX {
                        return Err(serde::de::Error::custom("the object has too many fields"));
                    }
                    all.push(member);
                }
                Ok(Object(all))
            }
        }
        from.deserialize_map(Members)
    }
}

/// As long as keys and names are elsewhere: a UUID, an e-mail address or an URN fit.
const CUSTOMER_ID_BYTES_MAX: usize = 255;

/// A code has three letters. What is a little longer is told that it is unknown, not that it is long.
const CURRENCY_BYTES_MAX: usize = 16;

/// A postal address on one line.
const PLACE_BYTES_MAX: usize = 512;

/// Requests here have up to five fields. Every one is compared with all before it, so the number is kept small.
const FIELDS_MAX: usize = 32;

/// Enough to find the field again in what was sent.
const NAME_BYTES_SHOWN: usize = 64;

/// Where `i64` ends.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

#[cfg(test)]
mod tests;
