//! Files as they come: good ones, odd ones, broken ones.

use super::*;

fn table(name: &str, text: &str, wanted: Option<&[&str]>) -> Result<InputFile, InputError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let wanted: Option<Vec<String>> =
        wanted.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    InputFile::open(path.to_str().unwrap(), None, wanted.as_deref())
}

/// Each line's number and cells, or what is wrong with it.
fn rows(name: &str, text: &str, wanted: Option<&[&str]>) -> Vec<String> {
    let mut table = table(name, text, wanted).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = table.next_row() {
        rows.push(match row {
            Ok(row) => format!("{} {}", row.number, row.cells.join("|")),
            Err(failure) => failure.message.split_once(", ").unwrap().1.to_owned(),
        });
    }
    rows
}

#[test]
fn lines_of_csv_have_the_numbers_that_an_editor_shows() {
    let text = "\u{feff}key,amount\na,1\n\n\"b\nc\",\"2,50\"\nd,3\n";
    assert_eq!(rows("a.csv", text, None), ["2 a|1", "4 b\nc|2,50", "6 d|3"]);
    assert_eq!(rows("a.csv", text.trim_end(), None)[2], "6 d|3");
    assert_eq!(table("a.CSV", text, None).unwrap().columns, ["key", "amount"]);
}

#[test]
fn an_unreadable_csv_line_is_named_and_skipped() {
    let text = "key,amount\na,1\nb\nc,2,3\nd,4\n";
    let expected =
        ["2 a|1", "line 3: 1 cells, and the header has 2", "line 4: 3 cells, and the header has 2", "5 d|4"];
    assert_eq!(rows("a.csv", text, None), expected);
}

#[test]
fn a_quote_that_is_never_closed_does_not_fill_the_memory() {
    let text = format!("key,amount\na,\"{}", "x\n".repeat(1 << 20));
    let mut table = table("a.csv", &text, None).unwrap();
    let failure = table.next_row().unwrap().err().unwrap();
    assert!(failure.message.ends_with("the line is longer than 1 MiB"), "{failure}");
    let text = format!("{{\"key\":\"a\"}}\n{{\"key\":\"{}\"}}\n", "x".repeat(1 << 20));
    let mut table = self::table("a.jsonl", &text, None).unwrap();
    assert!(table.next_row().unwrap().is_ok());
    let failure = table.next_row().unwrap().err().unwrap();
    assert!(failure.message.ends_with("line 2: the line is longer than 1 MiB"), "{failure}");
}

#[test]
fn every_json_line_has_the_fields_of_the_first() {
    let text = "{\"key\":\"a\",\"n\":1.50}\n\n{\"n\":2,\"key\":\"b\"}\n{\"key\":\"c\"}\n[]\n{\"key\":\"d\",\"n\":1,\"x\":1}\n";
    let read = rows("a.ndjson", text, None);
    assert_eq!(read[..3], ["1 a|1.50", "3 b|2", "line 4: there is no field `n`"]);
    assert!(read[3].starts_with("line 5: "), "{read:?}");
    assert_eq!(read[4], "line 6: the first line has no field `x`");
}

#[test]
fn with_named_columns_lines_of_json_may_have_others_too() {
    let text = "{\"key\":\"a\",\"n\":1}\n{\"x\":{},\"n\":2,\"key\":\"b\"}\n{\"n\":1}\n";
    assert_eq!(
        rows("a.jsonl", text, Some(&["key", "n"])),
        ["1 a|1", "2 b|2", "line 3: there is no field `key`"]
    );
    let mut table = table("a.jsonl", text, Some(&["key"])).unwrap();
    table.next_row();
    let whole = table.next_row().unwrap().unwrap().to_json(&["key".to_owned()]);
    assert_eq!(whole, "{\"x\":{},\"n\":2,\"key\":\"b\"}");
}

#[test]
fn a_file_that_is_none_of_these_is_refused() {
    let refused = |name: &str, text: &str| table(name, text, None).err().unwrap();
    assert_eq!(refused("a.txt", "").kind, InputErrorKind::Invalid);
    assert!(refused("a.csv", "").message.contains("there is no header"));
    assert!(refused("a.csv", "key,key\n").message.contains("two columns are called `key`"));
    assert_eq!(InputFile::open("no/such.csv", None, None).err().unwrap().kind, InputErrorKind::Unreadable);
    assert!(table("a.jsonl", "\n", None).unwrap().is_blank());
}
