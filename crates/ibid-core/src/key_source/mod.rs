//! Finds the key in a request: in header fields and members of the body, tried in order.
//!
//! The first source that is present decides. A source that is present and unreadable is an error, never a reason to try
//! the next one. The client meant to send a key; if the request ran without it, or under another key, a retry would be
//! a second execution.
//!
//! ```
//! use ibid_core::key_source::KeyFrom;
//! use ibid_core::policy::Policy;
//!
//! let key_from = KeyFrom::parse(["header:Idempotency-Key", "square"])?;
//! let policy = Policy::default().with(|policy| policy.key_from = key_from);
//! assert_eq!(policy.key_from.sources()[1].to_string(), "body:/idempotency_key");
//! # Ok::<(), ibid_core::key_source::KeySourceError>(())
//! ```

use std::fmt;

use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::fingerprint::media::Media;
use crate::fingerprint::{Pointer, PointerError, RequestView};
use crate::key::{Key, KeyError, KeyForm};

mod form;
mod json;

/// A part of a request that may carry the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeySource {
    /// A header field, by its name in lower case.
    Header(String),
    /// A string in a JSON body, or in a form body the field that the pointer's only token names.
    Body(Pointer),
}

/// The parts of a request that may carry the key, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyFrom(Vec<KeySource>);

/// Reason why a text names no source, or a list of sources cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySourceError {
    /// The text is neither `header:NAME`, `body:/pointer` nor a preset.
    #[error("`{0}` is no place for a key")]
    Unknown(String),
    /// `header:` with a name that no header has.
    #[error("`{0}` is not a header name")]
    HeaderName(String),
    /// The field means something else, or differs from retry to retry.
    #[error("`{0}` can't carry the key: the field means something else")]
    HeaderTaken(String),
    /// `body:` with a text that is not a JSON pointer.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// `body:` alone: the whole body cannot be the key.
    #[error("`body:` needs a pointer to the member that holds the key")]
    WholeBody,
    /// The list has no source.
    #[error("there must be at least one place for the key")]
    Empty,
    /// One source is listed twice.
    #[error("`{0}` is there twice")]
    Repeated(String),
    /// The list has more than [`KeyFrom::SOURCES_MAX`] sources.
    #[error("there are more than {max} places for the key", max = KeyFrom::SOURCES_MAX)]
    TooMany,
}

/// The result of a search for the key in a request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the layer has to handle every result")]
pub enum HeadSearch {
    /// The head carries the key.
    Found(Key),
    /// A source in the body comes next: read it and call [`KeyFrom::find`].
    NeedsBody,
    /// No source is present.
    Absent,
}

impl KeyFrom {
    /// Largest number of sources of one route. Each source in the body costs a pass over it.
    pub const SOURCES_MAX: usize = 8;

    /// Creates a list of these sources, in this order.
    ///
    /// # Errors
    ///
    /// Returns an error if the list is empty or too long, or names one place twice.
    pub fn new(sources: Vec<KeySource>) -> Result<KeyFrom, KeySourceError> {
        if sources.is_empty() {
            return Err(KeySourceError::Empty);
        }
        if sources.len() > KeyFrom::SOURCES_MAX {
            return Err(KeySourceError::TooMany);
        }
        for (at, source) in sources.iter().enumerate() {
            if sources[..at].contains(source) {
                return Err(KeySourceError::Repeated(source.to_string()));
            }
        }
        Ok(KeyFrom(sources))
    }

    /// Parses sources as a configuration writes them: `header:NAME`, `body:/pointer` or the name of a preset.
    ///
    /// # Errors
    ///
    /// Returns an error if a text is no place for a key, or if the list is empty, too long, or names one place twice.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<KeyFrom, KeySourceError> {
        let mut sources = Vec::new();
        for text in texts {
            match PRESETS.iter().find(|(name, _)| *name == text) {
                Some((_, preset)) => {
                    for text in *preset {
                        sources.push(KeySource::parse(text)?);
                    }
                }
                None => sources.push(KeySource::parse(text)?),
            }
        }
        KeyFrom::new(sources)
    }

    /// Creates a list of one header field. `name` must be a field name in lower case.
    pub(crate) fn header(name: &str) -> KeyFrom {
        KeyFrom(vec![KeySource::Header(name.to_owned())])
    }

    /// Returns the sources, in order.
    pub fn sources(&self) -> &[KeySource] {
        &self.0
    }

    /// Returns the names of the header fields among the sources, in lower case.
    pub fn header_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|source| match source {
            KeySource::Header(name) => Some(name.as_str()),
            KeySource::Body(_) => None,
        })
    }

    /// Searches as far as the head alone decides. Does not read the body of `asked`.
    ///
    /// # Errors
    ///
    /// Returns an error if the first field of the list that is present holds no key in this form.
    pub fn find_in_head(&self, asked: &dyn RequestView, form: KeyForm) -> Result<HeadSearch, KeyError> {
        for source in &self.0 {
            match source {
                KeySource::Body(_) => return Ok(HeadSearch::NeedsBody),
                KeySource::Header(name) => {
                    if let Some(key) = in_header(asked, name, form)? {
                        return Ok(HeadSearch::Found(key));
                    }
                }
            }
        }
        Ok(HeadSearch::Absent)
    }

    /// Returns a source known from a published API that carries a key in `asked` but is not in this list.
    ///
    /// For advice only: nothing says that the value is meant as a key here.
    pub fn find_elsewhere(&self, asked: &dyn RequestView) -> Option<KeySource> {
        let sources = KNOWN_SOURCES.iter().filter_map(|text| KeySource::parse(text).ok());
        sources.filter(|source| !self.0.contains(source)).find(|source| match source {
            KeySource::Header(name) => {
                let mut is_there = false;
                asked.header_lines(name, &mut |_| is_there = true);
                is_there
            }
            KeySource::Body(pointer) => matches!(in_body(asked, pointer), Ok(Some(_))),
        })
    }

    /// Searches head and body; `None` if no source is present.
    ///
    /// # Errors
    ///
    /// Returns an error if the first place that is present holds no key in this form, or if the body has to be searched and
    /// cannot be.
    pub fn find(&self, asked: &dyn RequestView, form: KeyForm) -> Result<Option<Key>, KeyError> {
        for source in &self.0 {
            let key = match source {
                KeySource::Header(name) => in_header(asked, name, form)?,
                KeySource::Body(pointer) => in_body(asked, pointer)?,
            };
            if key.is_some() {
                return Ok(key);
            }
        }
        Ok(None)
    }
}

impl KeySource {
    /// Parses `header:NAME` or `body:/pointer`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is no place for a key.
    pub fn parse(text: &str) -> Result<KeySource, KeySourceError> {
        match text.split_once(':') {
            Some(("header", name)) => {
                let name = name.trim().to_ascii_lowercase();
                if !is_field_name(&name) {
                    return Err(KeySourceError::HeaderName(name));
                }
                if HEADERS_TAKEN.contains(&name.as_str()) {
                    return Err(KeySourceError::HeaderTaken(name));
                }
                Ok(KeySource::Header(name))
            }
            Some(("body", pointer)) => {
                let pointer = Pointer::parse(pointer)?;
                if pointer.tokens().is_empty() {
                    return Err(KeySourceError::WholeBody);
                }
                Ok(KeySource::Body(pointer))
            }
            _ => Err(KeySourceError::Unknown(text.to_owned())),
        }
    }
}

impl Default for KeyFrom {
    fn default() -> KeyFrom {
        KeyFrom::header(DEFAULT_HEADER)
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Header(name) => write!(f, "header:{name}"),
            KeySource::Body(pointer) => write!(f, "body:{}", pointer.as_str()),
        }
    }
}

/// Leaves out the default: it is the same for nearly every record, and absent from records of older versions.
impl<C> Encode<C> for KeyFrom {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _context: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.array(self.0.len() as u64)?;
        for source in &self.0 {
            e.str(&source.to_string())?;
        }
        Ok(())
    }

    fn is_nil(&self) -> bool {
        *self == KeyFrom::default()
    }
}

impl<'b, C> Decode<'b, C> for KeyFrom {
    fn decode(d: &mut Decoder<'b>, _context: &mut C) -> Result<KeyFrom, minicbor::decode::Error> {
        let at = d.position();
        let texts: Vec<&str> = d.array_iter()?.collect::<Result<_, _>>()?;
        KeyFrom::parse(texts).map_err(|error| minicbor::decode::Error::custom(error).at(at))
    }

    fn nil() -> Option<KeyFrom> {
        Some(KeyFrom::default())
    }
}

/// Returns the key in a header field; `None` if there is no line.
fn in_header(asked: &dyn RequestView, name: &str, form: KeyForm) -> Result<Option<Key>, KeyError> {
    let mut lines = Vec::new();
    asked.header_lines(name, &mut |line| lines.push(line.to_vec()));
    Key::from_lines(lines.iter().map(Vec::as_slice), form)
}

/// Returns the key in the body; `None` if the body is empty or names none.
fn in_body(asked: &dyn RequestView, pointer: &Pointer) -> Result<Option<Key>, KeyError> {
    let body = asked.body();
    if body.is_empty() {
        return Ok(None);
    }
    if is_coded(asked) {
        return Err(KeyError::Unsearchable);
    }
    let media = Media::of(asked);
    let text = if media.is_json() || media.is_amz_json() {
        json::find(body, pointer.tokens())?
    } else if media.is_urlencoded() {
        match pointer.tokens() {
            [name] => form::find_urlencoded(body, name)?,
            _ => None,
        }
    } else if let Some(boundary) = media.form_boundary() {
        match pointer.tokens() {
            [name] => form::find_multipart(boundary, body, name)?,
            _ => None,
        }
    } else {
        // Some frameworks read JSON whatever the media type says, so their receiver may find a key in such a body.
        return Err(KeyError::Unsearchable);
    };
    text.map(|text| Key::stored(&text)).transpose()
}

/// Returns whether the body has a content coding. `identity` does not count.
fn is_coded(asked: &dyn RequestView) -> bool {
    let mut coded = false;
    asked.header_lines("content-encoding", &mut |line| {
        coded |= !line.trim_ascii().eq_ignore_ascii_case(b"identity");
    });
    coded
}

fn is_field_name(name: &str) -> bool {
    let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(tchar)
}

/// Header field of the IETF draft.
pub const DEFAULT_HEADER: &str = "idempotency-key";

/// A name and the sources that it stands for.
pub type KeyFromPreset = (&'static str, &'static [&'static str]);

/// The presets by name. Each lists the sources that the clients of one published API use.
pub const PRESETS: [KeyFromPreset; 3] = [
    ("square", &["body:/idempotency_key"]),
    ("paypal", &["header:paypal-request-id"]),
    // The form field of the Query protocol (EC2) has the same name. The service decides which spelling it reads.
    (
        "aws",
        &["body:/clientToken", "body:/ClientToken", "body:/clientRequestToken", "body:/ClientRequestToken"],
    ),
];

/// Sources that clients of published APIs use.
const KNOWN_SOURCES: [&str; 10] = [
    "header:idempotency-key",
    "header:x-idempotency-key",
    "header:paypal-request-id",
    "header:repeatability-request-id",
    "body:/idempotency_key",
    "body:/idempotencyKey",
    "body:/clientToken",
    "body:/ClientToken",
    "body:/clientRequestToken",
    "body:/ClientRequestToken",
];

/// Fields that hold a secret or that HTTP itself reads, and `date`, which differs from retry to retry.
const HEADERS_TAKEN: [&str; 12] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "host",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

#[cfg(test)]
mod tests;
