//! Words and phrases of prose: comments, docs, strings, SQL comments and Markdown.

use crate::Finding;
use crate::tree::Tree;

pub(super) fn find_pronouns(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["somebody|nobody|whoever|anybody|everybody|whosoever|whomever"])
}

pub(super) fn find_come_again(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["anew", "come|comes|came|coming again"])
}

pub(super) fn find_of_its_own(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["of its|their|his|one own"])
}

pub(super) fn find_stands(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["stand|stands|stood in|there|beside|behind|here|before", "as it stands"])
}

pub(super) fn find_what_becomes_of(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["what came|became|becomes|become of", "what stands"])
}

pub(super) fn find_goes_on(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["goes|gone|went on", "may|can|must|to go on"])
}

pub(super) fn find_under_way(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["under way", "for good", "for ever"])
}

pub(super) fn find_person(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["a|the person"])
}

pub(super) fn find_beside(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["beside"])
}

/// Finds "for" that means "because": after a comma, before a subject and its verb.
pub(super) fn find_for_because(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    const VERBS: &str = "is|are|was|were|has|have|had|would|may|might|can|can't|could|must|needs|need|does|do|did|will|costs|pays|makes|sets|adds|names|takes|looks|knows|says|stays";
    let bare = format!(", for it|they|then|most|nothing|there|we {ANY}");
    let pronoun = format!(", for that|this|these|those|one|who {VERBS}");
    let one = format!(", for a|an|the|its|no|every|each|their {ANY} {VERBS}");
    let two = format!(", for a|an|the|its|no|every|each|their {ANY} {ANY} {VERBS}");
    find_phrases(rule, tree, &[&bare, &pronoun, &one, &two])
}

pub(super) fn find_passive_told(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find_phrases(rule, tree, &["is|are|was|were|be|been told|said|heard"])
}

fn find_phrases(rule: &'static str, tree: &Tree<'_>, phrases: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, passage) in tree.passages() {
        for phrase in phrases {
            for (line, text) in passage.find(phrase) {
                findings.push(Finding {
                    rule,
                    path: path.to_owned(),
                    line,
                    text: format!("`{text}`"),
                    weight: 0,
                });
            }
        }
    }
    findings
}

/// Stands for any one word in a phrase.
const ANY: &str = "*";
