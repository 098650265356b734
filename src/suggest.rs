//! Finds the name that a user meant when a name is misspelt. Knows no names of its own.

/// Returns "did you mean `NAME`?" with the nearest of the `known` names, if one is near enough.
pub fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    nearest(name, known).map(|best| format!("did you mean `{best}`?"))
}

/// Returns the nearest of the `known` names, if it differs in at most one letter, and one more for each four of the name.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &'a str| {
        (strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase()), known)
    };
    let (distance, best) = known.map(near).min()?;
    let close = distance <= 1 + best.chars().count().max(name.chars().count()) / 4;
    close.then_some(best)
}
