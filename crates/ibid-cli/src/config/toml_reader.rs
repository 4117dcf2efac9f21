//! Reads tables of a TOML file key by key, and records the line of each.
//!
//! It knows types and lines, not meanings. A table is read to its end and every error is recorded, so that one run reports
//! them all. A key that no code reads is refused as unknown.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toml::de::{DeInteger, DeTable, DeValue};

use super::defaults;
use super::schema;
use super::units::{DURATION_FORM, SIZE_FORM, near_miss, parse_duration, parse_size};
use crate::output::{Failure, Failures};

/// One file and the errors found in it so far.
pub(super) struct Reader<'f> {
    file: &'f str,
    text: &'f str,
    problems: RefCell<Vec<(usize, Failure)>>,
}

impl<'f> Reader<'f> {
    pub(super) fn new(file: &'f str, text: &'f str) -> Reader<'f> {
        Reader { file, text, problems: RefCell::default() }
    }

    /// Returns the line of this byte, counted from 1.
    pub(super) fn line_at(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }

    /// Returns `file:line`, as compilers write it and editors open it.
    pub(super) fn position(&self, line: usize) -> String {
        format!("{}:{line}", self.file)
    }

    /// Records an error on this line.
    pub(super) fn refuse(&self, line: usize, problem: impl AsRef<str>) {
        self.keep(line, Failure::usage(format!("{}: {}", self.position(line), problem.as_ref())));
    }

    /// Records an error on this line, with advice.
    pub(super) fn refuse_with_hint(&self, line: usize, problem: impl AsRef<str>, hint: impl Into<String>) {
        self.keep(line, Failure::usage(format!("{}: {}", self.position(line), problem.as_ref())).hint(hint));
    }

    /// Records a finished error. Line 0 sorts before the file and is for flags and variables.
    pub(super) fn keep(&self, line: usize, failure: Failure) {
        let mut problems = self.problems.borrow_mut();
        // An invalid rule of `[defaults]` fails again in every route that inherits it.
        if !problems.iter().any(|(_, known)| known.message == failure.message) {
            problems.push((line, failure));
        }
    }

    /// Returns every error, ordered by line.
    pub(super) fn failures(&self) -> Option<Failures> {
        let mut problems = self.problems.borrow().clone();
        problems.sort_by_key(|(line, _)| *line);
        Failures::some(problems.into_iter().map(|(_, failure)| failure).collect())
    }
}

/// One table, while its keys are read.
pub(super) struct Section<'r, 'd> {
    reader: &'r Reader<'r>,
    name: &'static str,
    table: Option<&'d DeTable<'d>>,
    /// The first line of the table.
    pub(super) line: usize,
    asked: BTreeSet<&'static str>,
    lines: BTreeMap<&'static str, usize>,
}

/// One value with its key and line.
struct Field<'d> {
    key: &'static str,
    line: usize,
    value: &'d DeValue<'d>,
}

impl<'r, 'd> Section<'r, 'd> {
    /// Returns a reader for a table that is called `name` in [`schema`]. Without a `table` it has no keys.
    pub(super) fn new(
        reader: &'r Reader<'r>,
        name: &'static str,
        table: Option<&'d DeTable<'d>>,
        line: usize,
    ) -> Section<'r, 'd> {
        Section { reader, name, table, line, asked: BTreeSet::new(), lines: BTreeMap::new() }
    }

    /// Returns the table under `key`, which is called `name` in [`schema`].
    pub(super) fn section(&mut self, key: &'static str, name: &'static str) -> Section<'r, 'd> {
        let field = self.take(key);
        let line = field.as_ref().map_or(0, |field| field.line);
        let table = field.and_then(|field| match field.value {
            DeValue::Table(table) => Some(table),
            other => {
                self.refuse_type(&field, "must be a table", other);
                None
            }
        });
        Section::new(self.reader, name, table, line)
    }

    /// Returns the tables of the array under `key`.
    pub(super) fn sections(&mut self, key: &'static str, name: &'static str) -> Vec<Section<'r, 'd>> {
        let Some(field) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = field.value else {
            self.refuse_type(&field, &format!("must be an array of tables: write `[[{key}]]`"), field.value);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in items.iter() {
            let line = self.reader.line_at(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) => sections.push(Section::new(self.reader, name, Some(table), line)),
                other => self.refuse_type(&Field { key, line, value: other }, "must hold tables only", other),
            }
        }
        sections
    }

    /// Returns the table under `key`, or the tables of the array there; `None` if the key is not in the file.
    pub(super) fn one_or_more(
        &mut self,
        key: &'static str,
        name: &'static str,
    ) -> Option<Vec<Section<'r, 'd>>> {
        let field = self.take(key)?;
        if let DeValue::Table(table) = field.value {
            return Some(vec![Section::new(self.reader, name, Some(table), field.line)]);
        }
        if !matches!(field.value, DeValue::Array(_)) {
            self.refuse_type(&field, "must be a table or an array of tables", field.value);
            return None;
        }
        Some(self.sections(key, name))
    }

    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the line of a key that has been read and is in the file.
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        self.lines.get(key).copied()
    }

    /// Returns every key that has been read and is in the file, with its line.
    pub(super) fn lines(&self) -> &BTreeMap<&'static str, usize> {
        &self.lines
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        self.read(key, "must be a string", |value| match value {
            DeValue::String(text) => Some(Ok(text.to_string())),
            _ => None,
        })
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.read(key, "must be true or false", |value| value.as_bool().map(Ok))
    }

    pub(super) fn duration(&mut self, key: &'static str) -> Option<Duration> {
        self.read(key, DURATION_FORM, |value| value.as_str().map(parse_duration))
    }

    /// Reads a duration longer than zero.
    pub(super) fn positive(&mut self, key: &'static str) -> Option<Duration> {
        self.read(key, DURATION_FORM, |value| match parse_duration(value.as_str()?) {
            Ok(Duration::ZERO) => Some(Err("must be longer than zero")),
            read => Some(read),
        })
    }

    /// Reads a duration of a second or more.
    pub(super) fn seconds(&mut self, key: &'static str) -> Option<Duration> {
        self.read(key, DURATION_FORM, |value| match parse_duration(value.as_str()?) {
            Ok(length) if length < Duration::from_secs(1) => Some(Err("must be at least 1s")),
            read => Some(read),
        })
    }

    /// Reads a duration longer than zero, or the word that means none.
    pub(super) fn positive_or(&mut self, key: &'static str, word: &str) -> Option<Option<Duration>> {
        self.read(key, DURATION_FORM, |value| match value.as_str()? {
            text if text == word => Some(Ok(None)),
            text => match parse_duration(text) {
                Ok(Duration::ZERO) => Some(Err("must be longer than zero")),
                read => Some(read.map(Some)),
            },
        })
    }

    pub(super) fn size(&mut self, key: &'static str) -> Option<u64> {
        self.read(key, SIZE_FORM, |value| match value {
            DeValue::Integer(number) => Some(integer(number).ok_or(SIZE_FORM)),
            DeValue::String(text) => Some(parse_size(text)),
            _ => None,
        })
    }

    /// Reads a whole number from 1.
    pub(super) fn count(&mut self, key: &'static str) -> Option<u32> {
        const FORM: &str = "must be a whole number from 1 to 4294967295";
        self.read(key, FORM, |value| {
            let number = integer(value.as_integer()?).and_then(|number| u32::try_from(number).ok());
            Some(number.filter(|number| *number > 0).ok_or(FORM))
        })
    }

    /// Reads a whole number from 1 to 100.
    pub(super) fn percent(&mut self, key: &'static str) -> Option<u32> {
        const FORM: &str = "must be a whole number from 1 to 100";
        self.read(key, FORM, |value| {
            let number = integer(value.as_integer()?).and_then(|number| u32::try_from(number).ok());
            Some(number.filter(|number| (1..=100).contains(number)).ok_or(FORM))
        })
    }

    pub(super) fn status(&mut self, key: &'static str) -> Option<u16> {
        self.read(key, STATUS_FORM, |value| Some(status(value).ok_or(STATUS_FORM)))
    }

    pub(super) fn statuses(&mut self, key: &'static str) -> Option<Vec<u16>> {
        self.read(key, "must be an array of HTTP statuses such as [429, 503]", |value| {
            let read: Option<Vec<u16>> =
                value.as_array()?.iter().map(|item| status(item.get_ref())).collect();
            Some(read.ok_or("must hold HTTP statuses only, from 100 to 599"))
        })
    }

    pub(super) fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        self.read(key, "must be an array of strings", |value| {
            let texts = value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
            Some(texts.collect::<Option<Vec<_>>>().ok_or("must hold strings only"))
        })
    }

    /// Reads one string, or an array of them.
    pub(super) fn text_or_texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        self.read(key, "must be a string or an array of strings", |value| match value {
            DeValue::String(text) => Some(Ok(vec![text.to_string()])),
            value => {
                let texts = value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                Some(texts.collect::<Option<Vec<_>>>().ok_or("must hold strings only"))
            }
        })
    }

    /// Reads a table of statuses with arbitrary keys.
    pub(super) fn statuses_by(&mut self, key: &'static str) -> Option<Vec<(String, u16)>> {
        self.read(key, "must be a table of HTTP statuses such as { \"declined\" = 402 }", |value| {
            let pairs = value
                .as_table()?
                .iter()
                .map(|(name, value)| Some((name.get_ref().to_string(), status(value.get_ref())?)));
            Some(pairs.collect::<Option<Vec<_>>>().ok_or("must hold HTTP statuses only, from 100 to 599"))
        })
    }

    /// Reads a table of strings, such as header lines.
    pub(super) fn pairs(&mut self, key: &'static str) -> Option<Vec<(String, String)>> {
        self.read(key, "must be a table of strings such as { \"x-tenant-id\" = \"{tenant}\" }", |value| {
            let pair = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let name: &std::borrow::Cow<'_, str> = name.get_ref();
                Some((name.to_string(), value.get_ref().as_str()?.to_owned()))
            };
            Some(
                value
                    .as_table()?
                    .iter()
                    .map(pair)
                    .collect::<Option<Vec<_>>>()
                    .ok_or("must hold strings only"),
            )
        })
    }

    /// Reads one of `words`. A word in `later` is known, and refused with its reason.
    pub(super) fn choice<T: Clone>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
        later: &[(&str, &str)],
    ) -> Option<T> {
        let field = self.take(key)?;
        let offered =
            || words.iter().map(|(word, _)| *word).filter(|word| !later.iter().any(|(l, _)| l == word));
        let form = format!(
            "must be {}",
            offered().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ")
        );
        let Some(text) = field.value.as_str() else {
            self.refuse_type(&field, &form, field.value);
            return None;
        };
        if let Some((word, reason)) = later.iter().find(|(word, _)| *word == text) {
            let problem = format!("`{key} = \"{word}\"` is not available in this release");
            self.reader.refuse_with_hint(field.line, problem, *reason);
            return None;
        }
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(value.clone());
        }
        let problem = format!("`{key}` {form}, not \"{text}\"");
        match near_miss(text, offered()) {
            Some(near) => {
                self.reader.refuse_with_hint(field.line, problem, format!("did you mean \"{near}\"?"))
            }
            None => self.reader.refuse(field.line, problem),
        }
        None
    }

    /// Refuses every key of the table that has not been read.
    pub(super) fn finish(self) {
        for (key, _) in self.table.iter().flat_map(|table| table.iter()) {
            let name = key.get_ref().as_ref();
            if self.asked.contains(name) {
                continue;
            }
            let line = self.reader.line_at(key.span().start);
            let title = schema::title(self.name);
            let problem = format!("{}: `{name}` is not a key of {title}", self.reader.position(line));
            let failure = Failure::usage(problem)
                .because("a key that is accepted and ignored would be a rule without effect")
                .hint(self.unknown_hint(name));
            self.reader.keep(line, failure);
        }
    }

    fn unknown_hint(&self, name: &str) -> String {
        if let Some(near) = near_miss(name, self.asked.iter().copied()) {
            return format!("did you mean `{near}`?");
        }
        match schema::all().find(|known| known.key == name) {
            Some(elsewhere) => format!("`{name}` is a key of {}", schema::title(elsewhere.section)),
            None => "remove it; the reference page `configuration` lists every key".to_owned(),
        }
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        form: &str,
        parse: impl FnOnce(&DeValue<'d>) -> Option<Result<T, &'static str>>,
    ) -> Option<T> {
        let field = self.take(key)?;
        match parse(field.value) {
            Some(Ok(value)) => return Some(value),
            Some(Err(problem)) => self.reader.keep(field.line, self.failure(&field, problem)),
            None => self.refuse_type(&field, form, field.value),
        }
        None
    }

    fn take(&mut self, key: &'static str) -> Option<Field<'d>> {
        debug_assert!(
            schema::is_known(self.name, key),
            "`{key}` of `{}` is missing in the list of keys",
            self.name
        );
        self.asked.insert(key);
        let (name, value) = self.table?.iter().find(|(name, _)| name.get_ref().as_ref() == key)?;
        let line = self.reader.line_at(name.span().start);
        self.lines.insert(key, line);
        Some(Field { key, line, value: value.get_ref() })
    }

    fn refuse_type(&self, field: &Field<'_>, form: &str, value: &DeValue<'_>) {
        let article = if matches!(value, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
        let failure = self.failure(field, form).because(format!("it is {article} {}", value.type_str()));
        self.reader.keep(field.line, failure);
    }

    fn failure(&self, field: &Field<'_>, problem: &str) -> Failure {
        let failure =
            Failure::usage(format!("{}: `{}` {problem}", self.reader.position(field.line), field.key));
        match schema::find(self.name, field.key)
            .and_then(|known| defaults::default_of(known.section, known.key))
        {
            Some(default) => failure.hint(format!("the default is {default}")),
            None => failure,
        }
    }
}

fn integer(number: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn status(value: &DeValue<'_>) -> Option<u16> {
    let number = integer(value.as_integer()?)?;
    u16::try_from(number).ok().filter(|status| (100..600).contains(status))
}

const STATUS_FORM: &str = "must be an HTTP status from 100 to 599";
