//! The language of the stories itself: a story that is wrong fails.

use ibid_testkit::story::story;

#[test]
#[should_panic(expected = "expected: wait")]
fn a_story_with_a_wrong_outcome_fails() {
    story("ann  begins  -> wait");
}

#[test]
#[should_panic(expected = "unknown word `dances`")]
fn a_story_with_an_unknown_word_fails() {
    story("ann  dances  -> run");
}

#[test]
#[should_panic(expected = "expected: completed")]
fn a_story_that_is_wrong_about_the_record_fails() {
    story(
        "
        ann     begins
        record  is completed
        ",
    );
}
