//! The outline of one Rust file: its items with their docs and sizes, and the paths that it names.

use crate::lexer::{Kind, Token, lex};

/// A Rust file and its outline.
#[derive(Debug)]
pub(crate) struct RustFile<'a> {
    /// Path from the root of the workspace, with `/`.
    pub(crate) path: &'a str,
    /// All tokens, comments included.
    pub(crate) tokens: Vec<Token<'a>>,
    /// Modules, types and functions, in the order of the file.
    pub(crate) items: Vec<Item<'a>>,
    /// Paths that begin with a crate, `crate`, `self` or `super`, made absolute.
    pub(crate) paths: Vec<NamedPath>,
    /// Lines of the modules that are compiled for tests only, first and last.
    test_lines: Vec<(usize, usize)>,
}

/// A module, type or function.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    /// The kind of item that is declared.
    pub(crate) kind: ItemKind,
    /// The name that is declared.
    pub(crate) name: &'a str,
    /// Line of the name.
    pub(crate) line: usize,
    /// Line of the closing brace, or of the name if there is no body.
    pub(crate) last_line: usize,
    /// Declared with a bare `pub`.
    pub(crate) is_public: bool,
    /// True for functions that are declared with `async`.
    pub(crate) is_async: bool,
    /// Marked as a test, by an attribute whose path ends in `test`.
    pub(crate) is_test: bool,
    /// True for a function of a type that returns this type: a constructor or a builder's method.
    pub(crate) is_constructor: bool,
    /// Return type as tokens joined by blanks; empty if there is none.
    pub(crate) returns: String,
    /// Lines of the doc comment before it.
    pub(crate) docs: Vec<&'a str>,
}

/// The kinds of items that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// A module, declared with `mod`.
    Module,
    /// `struct`, `enum`, `trait`, or a `type` that is not an associated one.
    Type,
    /// A function, declared with `fn`.
    Function,
}

/// A path as the code names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    /// Its segments, from the crate's name on.
    pub(crate) segments: Vec<String>,
    /// The line on which it is named.
    pub(crate) line: usize,
}

impl<'a> RustFile<'a> {
    /// Reads the outline of a file.
    pub(crate) fn parse(path: &'a str, text: &'a str) -> RustFile<'a> {
        let mut file = RustFile {
            path,
            tokens: lex(text),
            items: Vec::new(),
            paths: Vec::new(),
            test_lines: Vec::new(),
        };
        let code: Vec<Token<'a>> = file.tokens.iter().filter(|token| !is_plain(token)).copied().collect();
        let mut outline =
            Outline { code: &code, at: 0, scopes: Vec::new(), pending: Pending::default(), file: &mut file };
        outline.read();
        file
    }

    /// Returns whether the line is compiled for tests only.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        is_test_path(self.path) || self.is_in_test_module(line)
    }

    /// Returns whether the line is in a module with `#[cfg(test)]`.
    pub(crate) fn is_in_test_module(&self, line: usize) -> bool {
        self.test_lines.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }

    /// The crate's name and the modules down to this file.
    pub(crate) fn module(&self) -> Vec<String> {
        module_of(self.path)
    }

    /// Number of lines that hold code.
    pub(crate) fn code_lines(&self) -> usize {
        let mut lines: Vec<usize> = Vec::new();
        for token in self.tokens.iter().filter(|token| !token.is_comment()) {
            lines.extend(token.line..=token.line + token.text.matches('\n').count());
        }
        lines.dedup();
        lines.len()
    }
}

/// Returns whether a file holds tests or what only tests use.
pub(crate) fn is_test_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/tests/")
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
        || path.contains("/ibid-testkit/")
}

fn is_plain(token: &Token<'_>) -> bool {
    matches!(token.kind, Kind::Comment | Kind::InnerDoc)
}

fn module_of(path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    let package = parts.get(1).copied().unwrap_or_default();
    let mut module = vec![package.replace('-', "_")];
    let inner = parts.iter().position(|part| *part == "src").map_or(&[][..], |at| &parts[at + 1..]);
    for part in inner {
        let name = part.trim_end_matches(".rs");
        if !matches!(name, "lib" | "main" | "mod") {
            module.push(name.to_owned());
        }
    }
    module
}

/// Comments and attributes that were read before an item and belong to it.
#[derive(Default)]
struct Pending<'a> {
    docs: Vec<&'a str>,
    is_public: bool,
    is_async: bool,
    is_test: bool,
    is_test_only: bool,
    /// The next brace opens the body of an `impl` or a `trait`.
    is_body: bool,
    /// The type that an `impl` is of.
    self_type: Option<&'a str>,
}

enum Scope<'a> {
    Module { name: &'a str, is_test_only: bool, first_line: usize },
    Body { self_type: Option<&'a str> },
    Other,
}

struct Outline<'a, 'f> {
    code: &'f [Token<'a>],
    at: usize,
    scopes: Vec<Scope<'a>>,
    pending: Pending<'a>,
    file: &'f mut RustFile<'a>,
}

impl<'a> Outline<'a, '_> {
    fn read(&mut self) {
        while let Some(token) = self.code.get(self.at).copied() {
            match (token.kind, token.text) {
                (Kind::OuterDoc, text) => self.pending.docs.push(text),
                (Kind::Punct, "#") => self.attribute(),
                (Kind::Ident, "pub") => self.visibility(),
                (Kind::Ident, "async") => self.pending.is_async = true,
                (Kind::Ident, "fn") => self.item(ItemKind::Function),
                (Kind::Ident, "struct" | "enum") => self.item(ItemKind::Type),
                (Kind::Ident, "trait") => {
                    self.item(ItemKind::Type);
                    self.pending.is_body = true;
                }
                (Kind::Ident, "type") if !matches!(self.scopes.last(), Some(Scope::Body { .. })) => {
                    self.item(ItemKind::Type);
                }
                (Kind::Ident, "impl") => {
                    self.pending.is_body = true;
                    self.pending.self_type = self.self_type();
                }
                (Kind::Ident, "mod") => self.module(),
                (Kind::Punct, "{") => self.open(),
                (Kind::Punct, "}") => self.close(token.line),
                (Kind::Punct, ";" | ",") => {
                    // The header of an `impl` may have commas, too: in generics and bounds.
                    let Pending { is_body, self_type, .. } = std::mem::take(&mut self.pending);
                    self.pending = Pending { is_body, self_type, ..Pending::default() };
                }
                (Kind::Ident, _) if self.starts_path() => self.path(),
                _ => {}
            }
            self.at += 1;
        }
    }

    fn attribute(&mut self) {
        let open = self.at + 1;
        if !self.is(open, "[") {
            return;
        }
        let close = self.matching(open, "[", "]");
        let words: Vec<&str> = self.code[open..close]
            .iter()
            .filter(|token| token.kind == Kind::Ident)
            .map(|token| token.text)
            .collect();
        match words.as_slice() {
            ["cfg", rest @ ..] => self.pending.is_test_only |= rest == ["test"],
            [.., "test"] | ["test" | "rstest", ..] | ["tokio", "test", ..] => self.pending.is_test = true,
            _ => {}
        }
        self.at = close;
    }

    fn visibility(&mut self) {
        if self.is(self.at + 1, "(") {
            self.at = self.matching(self.at + 1, "(", ")");
        } else {
            self.pending.is_public = true;
        }
    }

    fn item(&mut self, kind: ItemKind) {
        let Some(name) = self.code.get(self.at + 1).filter(|token| token.kind == Kind::Ident) else { return };
        let (returns, body) = self.signature(self.at + 2);
        let last_line = body.map_or(name.line, |open| self.code[self.matching(open, "{", "}")].line);
        let pending = std::mem::take(&mut self.pending);
        let inner = returns.trim_start_matches("Result < ").trim_start_matches("Option < ");
        let returned = inner.split(' ').next().unwrap_or_default();
        let is_constructor = match self.scopes.last() {
            Some(Scope::Body { self_type }) => returned == "Self" || Some(returned) == *self_type,
            _ => false,
        };
        self.file.items.push(Item {
            kind,
            name: name.text,
            line: name.line,
            last_line,
            is_public: pending.is_public,
            is_async: pending.is_async,
            is_test: pending.is_test,
            is_constructor,
            returns,
            docs: pending.docs,
        });
        self.at += 1;
    }

    /// Reads on to the body or the end of an item: its return type, and where the body opens.
    fn signature(&self, from: usize) -> (String, Option<usize>) {
        let (mut returns, mut in_return, mut depth) = (Vec::new(), false, 0usize);
        for (at, token) in self.code.iter().enumerate().skip(from) {
            match token.text {
                _ if token.kind == Kind::Str => {}
                "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                ";" if depth == 0 => return (returns.join(" "), None),
                "{" if depth == 0 => return (returns.join(" "), Some(at)),
                "where" => in_return = false,
                ">" if depth == 0 && self.is(at - 1, "-") => {
                    in_return = true;
                    continue;
                }
                _ => {}
            }
            if in_return {
                returns.push(token.text);
            }
        }
        (returns.join(" "), None)
    }

    fn module(&mut self) {
        let Some(name) = self.code.get(self.at + 1).filter(|token| token.kind == Kind::Ident) else { return };
        let (is_test_only, first_line) = (self.pending.is_test_only, name.line);
        let opens = self.is(self.at + 2, "{");
        self.item(ItemKind::Module);
        if opens {
            self.scopes.push(Scope::Module { name: name.text, is_test_only, first_line });
            self.at += 1;
        }
    }

    fn open(&mut self) {
        let self_type = self.pending.self_type;
        let scope = if self.pending.is_body { Scope::Body { self_type } } else { Scope::Other };
        self.scopes.push(scope);
        self.pending = Pending::default();
    }

    fn close(&mut self, line: usize) {
        if let Some(Scope::Module { is_test_only: true, first_line, .. }) = self.scopes.pop() {
            self.file.test_lines.push((first_line, line));
        }
        self.pending = Pending::default();
    }

    /// Returns the name of the type that the `impl` here is of: the last name of its path, without its generics.
    fn self_type(&self) -> Option<&'a str> {
        let (mut depth, mut name) = (0usize, None);
        for (at, token) in self.code.iter().enumerate().skip(self.at + 1) {
            match token.text {
                "<" => depth += 1,
                ">" if !self.is(at - 1, "-") => depth = depth.saturating_sub(1),
                "{" | "where" | ";" if depth == 0 => break,
                "for" if depth == 0 => name = None,
                text if depth == 0 && token.kind == Kind::Ident => name = Some(text),
                _ => {}
            }
        }
        name
    }

    fn starts_path(&self) -> bool {
        let token = self.code[self.at];
        let is_root = matches!(token.text, "crate" | "super" | "self") || token.text.starts_with("ibid");
        let after_colons = self.at > 0 && self.is(self.at - 1, ":");
        is_root && !after_colons && self.is_colons(self.at + 1)
    }

    fn path(&mut self) {
        let mut module = self.file.module();
        let root = self.code[self.at].text;
        for scope in &self.scopes {
            if let Scope::Module { name, .. } = scope {
                module.push((*name).to_owned());
            }
        }
        let mut at = self.at;
        let mut prefix = match root {
            "crate" => module[..1].to_vec(),
            "self" => module,
            "super" => {
                module.pop();
                while self.is_colons(at + 1) && self.is(at + 3, "super") {
                    module.pop();
                    at += 3;
                }
                module
            }
            name => vec![name.to_owned()],
        };
        at += 1;
        self.at = self.expand(&mut prefix, at) - 1;
    }

    /// Follows a path from its `::` on, through the groups of a `use`. Returns the index after it.
    fn expand(&mut self, prefix: &mut Vec<String>, mut at: usize) -> usize {
        let length = prefix.len();
        let line = self.code[at - 1].line;
        loop {
            if !self.is_colons(at) {
                break;
            }
            if self.is(at + 2, "{") {
                let close = self.matching(at + 2, "{", "}");
                let mut inner = at + 3;
                while inner < close {
                    if self.code[inner].kind == Kind::Ident && !self.code[inner].is("as") {
                        prefix.push(self.code[inner].text.to_owned());
                        inner = self.expand(prefix, inner + 1);
                        prefix.pop();
                    } else if self.code[inner].is("as") {
                        inner += 2;
                    } else {
                        inner += 1;
                    }
                }
                prefix.truncate(length);
                return close + 1;
            }
            match self.code.get(at + 2) {
                Some(token) if token.kind == Kind::Ident => prefix.push(token.text.to_owned()),
                _ => break,
            }
            at += 3;
        }
        self.file.paths.push(NamedPath { segments: prefix.clone(), line });
        prefix.truncate(length);
        at
    }

    fn is(&self, at: usize, text: &str) -> bool {
        self.code.get(at).is_some_and(|token| token.is(text))
    }

    fn is_colons(&self, at: usize) -> bool {
        self.is(at, ":") && self.is(at + 1, ":")
    }

    /// Index of the bracket that closes the one at `open`, or of the last token.
    fn matching(&self, open: usize, opening: &str, closing: &str) -> usize {
        let mut depth = 0usize;
        for (at, token) in self.code.iter().enumerate().skip(open) {
            if token.is(opening) {
                depth += 1;
            } else if token.is(closing) {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
        }
        self.code.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustFile<'_> {
        RustFile::parse("crates/ibid/src/engine/wait.rs", text)
    }

    #[test]
    fn items_have_their_docs_and_sizes() {
        let file = parse(
            "/// Waits.\n#[must_use]\npub async fn wait(a: [u8; 4]) -> Result<(), E> {\n  if x {\n  }\n}\npub(crate) struct B;\n\
             impl T for B { type Out = u8; fn inner() {} }",
        );
        let wait = &file.items[0];
        assert_eq!((wait.name, wait.line, wait.last_line), ("wait", 3, 6));
        assert!(wait.is_public && wait.is_async && wait.returns.starts_with("Result"));
        assert_eq!(wait.docs, [" Waits."]);
        let names: Vec<&str> = file.items.iter().map(|item| item.name).collect();
        assert_eq!(names, ["wait", "B", "inner"], "an associated type is no item");
        assert!(!file.items[1].is_public);
    }

    #[test]
    fn generics_of_an_impl_do_not_end_its_header() {
        let file = parse(
            "impl<A, B: F<A>> T<A> for crate::C<A, B> { type Out = A; fn made() -> Result<Self, E> {} }",
        );
        let names: Vec<_> = file.items.iter().map(|item| (item.name, item.is_constructor)).collect();
        assert_eq!(names, [("made", true)]);
        let file = parse("impl C { fn made(self) -> C {}\nfn used(&self) -> usize {} }\nfn made() -> C {}");
        let made: Vec<_> = file.items.iter().map(|item| item.is_constructor).collect();
        assert_eq!(made, [true, false, false]);
    }

    #[test]
    fn paths_are_resolved_through_groups_and_super() {
        let file = parse(
            "use crate::{outbox::{Worker, claim}, store as s};\nuse super::super::upkeep::run;\nuse super::cache::Cache;\n\
             mod tests { use super::super::breaker; }\nfn f() { crate::http::serve(); ibid_core::machine::decide() }",
        );
        let paths: Vec<String> = file.paths.iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(
            paths,
            [
                "ibid::outbox::Worker",
                "ibid::outbox::claim",
                "ibid::store",
                "ibid::upkeep::run",
                "ibid::engine::cache::Cache",
                "ibid::engine::breaker",
                "ibid::http::serve",
                "ibid_core::machine::decide",
            ]
        );
    }

    #[test]
    fn test_modules_and_tests_are_recognised() {
        let file = parse("fn a() {}\n#[cfg(test)]\nmod tests {\n  #[tokio::test]\n  async fn b() {}\n}\n");
        assert!(file.is_test_line(5) && !file.is_test_line(1));
        let tests: Vec<&str> = file.items.iter().filter(|item| item.is_test).map(|item| item.name).collect();
        assert_eq!(tests, ["b"]);
        assert!(RustFile::parse("crates/ibid/tests/it/a.rs", "").is_test_line(1));
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        assert_eq!(parse("// a\n\nfn b() {\n    // c\n}\nconst D: &str = \"e\nf\";\n").code_lines(), 4);
    }
}
