//! The rules under which an outcome occurs, in few words.

/// Returns the different outcomes, each with the rules under which it occurs. Only rules that make a difference are
/// named.
pub(super) fn group_outcomes<R: Clone + PartialEq>(
    names: &[&str],
    outcomes: &[(Vec<&'static str>, R)],
) -> Vec<(String, R)> {
    let matters: Vec<usize> = (0..names.len())
        .filter(|dimension| {
            outcomes.iter().any(|(values, row)| {
                outcomes.iter().any(|(others, other)| {
                    let alike = (0..names.len()).all(|d| d == *dimension || values[d] == others[d]);
                    alike && row != other
                })
            })
        })
        .collect();
    let mut groups: Vec<(Vec<Vec<&'static str>>, R)> = Vec::new();
    for (values, row) in outcomes {
        let chosen: Vec<_> = matters.iter().map(|d| values[*d]).collect();
        match groups.iter_mut().find(|(_, known)| known == row) {
            Some((combinations, _)) if combinations.contains(&chosen) => {}
            Some((combinations, _)) => combinations.push(chosen),
            None => groups.push((vec![chosen], row.clone())),
        }
    }
    let mut all: Vec<Vec<&'static str>> = Vec::new();
    for (combinations, _) in &groups {
        all.extend(combinations.iter().cloned());
    }
    let names: Vec<_> = matters.iter().map(|d| names[*d]).collect();
    let each = groups.into_iter().flat_map(|(combinations, row)| {
        conditions(&names, &combinations, &all).into_iter().map(move |when| (when.join(", "), row.clone()))
    });
    each.collect()
}

/// Reduces combinations to few conditions: values of one rule that leave the same choices to the other rules are
/// merged.
fn conditions(names: &[&str], chosen: &[Vec<&'static str>], all: &[Vec<&'static str>]) -> Vec<Vec<String>> {
    let Some((name, names)) = names.split_first() else {
        return vec![Vec::new()];
    };
    let rest_of = |combinations: &[Vec<&'static str>], value: &str| -> Vec<Vec<&'static str>> {
        combinations.iter().filter(|c| c[0] == value).map(|c| c[1..].to_vec()).collect()
    };
    let mut groups: Vec<(Vec<&str>, Vec<Vec<&'static str>>)> = Vec::new();
    for value in chosen.iter().map(|combination| combination[0]) {
        let rest = rest_of(chosen, value);
        match groups.iter_mut().find(|(_, known)| *known == rest) {
            Some((values, _)) if values.contains(&value) => {}
            Some((values, _)) => values.push(value),
            None => groups.push((vec![value], rest)),
        }
    }
    let mut possible: Vec<_> = all.iter().map(|combination| combination[0]).collect();
    possible.sort_unstable();
    possible.dedup();
    let mut lines = Vec::new();
    for (values, rest) in groups {
        let own = (values.len() < possible.len()).then(|| format!("`{name}` {}", values.join(" or ")));
        for more in conditions(names, &rest, &rest_of(all, values[0])) {
            lines.push(own.iter().cloned().chain(more).collect());
        }
    }
    lines
}
