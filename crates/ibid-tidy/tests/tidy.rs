//! Holds the source tree to the rules of names, prose, layers and sizes.

#[test]
fn the_tree_is_tidy() {
    if let Err(report) = ibid_tidy::check() {
        panic!("\n{report}\nCONTRIBUTING.md says how the tree is checked");
    }
}
