//! The parts of a request that count for its fingerprint.
//!
//! A recipe is stored with its record, so that a retry after a change of configuration is compared by the rule of its
//! first attempt.

use minicbor::{Decode, Encode};

use super::Pointer;

/// The headers and the parts of the body that count, besides method, path, query and media type, which always do.
///
/// The default is no header and the whole body by its media type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Recipe {
    #[n(0)]
    headers: Vec<String>,
    #[n(1)]
    include: Vec<Pointer>,
    #[n(2)]
    exclude: Vec<Pointer>,
    #[n(3)]
    body: BodyRule,
}

/// Reading of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum BodyRule {
    /// By its media type: JSON by value, `multipart/form-data` by its parts, everything else by its bytes.
    #[default]
    #[n(0)]
    Auto,
    /// By its bytes, whatever its media type.
    #[n(1)]
    Raw,
}

impl Recipe {
    /// Also counts every line of this header. The case of the name does not matter.
    pub fn with_header(mut self, name: &str) -> Recipe {
        self.headers.push(name.to_ascii_lowercase());
        self
    }

    /// Counts only included values of a JSON body. A body that has none of them counts whole.
    pub fn with_include(mut self, pointer: Pointer) -> Recipe {
        self.include.push(pointer);
        self
    }

    /// Leaves out this value of a JSON body, also from included values.
    pub fn with_exclude(mut self, pointer: Pointer) -> Recipe {
        self.exclude.push(pointer);
        self
    }

    /// Reads the body by this rule. Pointers apply only if it is read as JSON.
    pub fn with_body(mut self, rule: BodyRule) -> Recipe {
        self.body = rule;
        self
    }

    /// Returns the headers that count, in lower case.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// Returns the only values of a JSON body that count, if any are named.
    pub fn include(&self) -> &[Pointer] {
        &self.include
    }

    /// Returns the values of a JSON body that do not count.
    pub fn exclude(&self) -> &[Pointer] {
        &self.exclude
    }

    /// Returns how the body is read.
    pub fn body(&self) -> BodyRule {
        self.body
    }
}
