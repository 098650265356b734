//! What somebody meant who misspelt a name. Knows no names of its own.

/// "did you mean `NAME`?" with the nearest of the `known` names, if one is near.
pub fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    nearest(name, known).map(|best| format!("did you mean `{best}`?"))
}

/// The nearest of the `known` names, if one is near.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &'a str| {
        (strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase()), known)
    };
    let (distance, best) = known.map(near).min()?;
    let close = distance <= 1 + best.chars().count().max(name.chars().count()) / 4;
    close.then_some(best)
}
