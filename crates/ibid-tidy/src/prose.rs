//! Prose of a file as words with their lines: comments, strings, SQL comments and Markdown, without code.

use crate::lexer::{Kind, Token};

/// A run of prose: a comment, a string, a paragraph.
#[derive(Debug, Default)]
pub(crate) struct Passage<'a> {
    /// Words in lower case, and commas, full stops and the like each as a word.
    pub(crate) words: Vec<Word<'a>>,
}

/// A word or a punctuation mark of a passage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    /// As it is written, without the punctuation around it.
    pub(crate) text: &'a str,
    /// The line on which it is written.
    pub(crate) line: usize,
}

impl<'a> Passage<'a> {
    /// Returns the line and the text of each occurrence of `phrase`.
    ///
    /// A phrase is words with blanks between them: `a|b` stands for either word, `*` for any word, `,` for a comma.
    pub(crate) fn find(&self, phrase: &str) -> Vec<(usize, String)> {
        let parts: Vec<Vec<&str>> = phrase.split(' ').map(|part| part.split('|').collect()).collect();
        let is_part = |word: &Word<'_>, part: &[&str]| match part {
            ["*"] => word.text.starts_with(char::is_alphanumeric),
            _ => part.iter().any(|one| word.text.eq_ignore_ascii_case(one)),
        };
        let fits = |words: &[Word<'_>]| words.iter().zip(&parts).all(|(word, part)| is_part(word, part));
        let shown = |words: &[Word<'_>]| words.iter().map(|word| word.text).collect::<Vec<_>>().join(" ");
        let windows = self.words.windows(parts.len());
        windows.filter(|words| fits(words)).map(|words| (words[0].line, shown(words))).collect()
    }

    fn add_line(&mut self, text: &'a str, line: usize) {
        for (at, piece) in text.split('`').enumerate() {
            if at % 2 == 0 {
                piece.split_whitespace().for_each(|word| self.add_word(word, line));
            } else {
                // Code between two words keeps them from being a phrase.
                self.words.push(Word { text: "`", line });
            }
        }
    }

    fn add_word(&mut self, word: &'a str, line: usize) {
        let is_part = |c: char| c.is_alphanumeric() || c == '\'' || c == '-';
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let len = if is_part(first) {
                rest.find(|c: char| !is_part(c)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            let text = rest[..len].trim_end_matches("'s");
            self.words.push(Word { text, line });
            rest = &rest[len..];
        }
    }
}

/// Returns the prose of Rust source: neighbouring comment lines are one passage, each string is one.
pub(crate) fn rust_passages<'a>(tokens: &[Token<'a>]) -> Vec<Passage<'a>> {
    let mut passages = Vec::new();
    let mut last: Option<(Kind, usize)> = None;
    let mut in_fence = false;
    for token in tokens {
        if token.kind == Kind::Str {
            let mut passage = Passage::default();
            for (at, text) in token.text.lines().enumerate() {
                passage.add_line(text, token.line + at);
            }
            passages.push(passage);
        }
        if !token.is_comment() {
            last = None;
            continue;
        }
        if last != Some((token.kind, token.line - 1)) {
            passages.push(Passage::default());
            in_fence = false;
        }
        last = Some((token.kind, token.line + token.text.matches('\n').count()));
        for (at, text) in token.text.lines().enumerate() {
            in_fence ^= text.trim_start().starts_with("```");
            if let (false, Some(passage)) = (in_fence, passages.last_mut()) {
                passage.add_line(text, token.line + at);
            }
        }
    }
    passages
}

/// Returns the comments of SQL.
pub(crate) fn sql_passages(text: &str) -> Vec<Passage<'_>> {
    let mut passages = vec![Passage::default()];
    for (at, line) in text.lines().enumerate() {
        match line.split_once("--") {
            Some((_, comment)) => {
                if let Some(passage) = passages.last_mut() {
                    passage.add_line(comment, at + 1);
                }
            }
            None => passages.push(Passage::default()),
        }
    }
    passages
}

/// Returns the paragraphs of Markdown without code blocks and comments. A generated page has none: its source is
/// checked.
pub(crate) fn markdown_passages(text: &str) -> Vec<Passage<'_>> {
    let mut passages = vec![Passage::default()];
    if text.starts_with("<!-- Written by") {
        return passages;
    }
    let mut in_fence = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if line.trim().is_empty() || in_fence {
            passages.push(Passage::default());
        } else if let Some(passage) = passages.last_mut() {
            passage.add_line(line, at + 1);
        }
    }
    passages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::lex;

    fn lines(passages: &[Passage<'_>], phrase: &str) -> Vec<usize> {
        passages.iter().flat_map(|passage| passage.find(phrase)).map(|(line, _)| line).collect()
    }

    #[test]
    fn a_phrase_is_found_across_comment_lines() {
        let tokens = lex("// It has a file of\n// its own.\nlet a = 1; // of its\n\n// own\n");
        assert_eq!(lines(&rust_passages(&tokens), "of its|their own"), [1]);
    }

    #[test]
    fn code_in_prose_is_skipped() {
        let tokens =
            lex("/// See `nobody` and\n/// ```\n/// nobody();\n/// ```\n/// Nobody's.\nfn nobody() {}\n");
        assert_eq!(lines(&rust_passages(&tokens), "nobody"), [5]);
        assert_eq!(lines(&markdown_passages("a\n```\nnobody\n```\n`nobody` and nobody\n"), "nobody"), [5]);
    }

    #[test]
    fn strings_and_sql_comments_are_prose() {
        assert_eq!(lines(&rust_passages(&lex("warn!(\"told\n anew\")")), "anew"), [2]);
        assert_eq!(lines(&sql_passages("-- Read anew.\nselect 'anew'\n"), "anew"), [1]);
    }

    #[test]
    fn punctuation_is_a_word_between_words() {
        let tokens = lex("// It waits, for the row is locked. Of its. Own");
        assert_eq!(lines(&rust_passages(&tokens), ", for the row is"), [1]);
        assert!(lines(&rust_passages(&tokens), "of its own").is_empty());
    }
}
