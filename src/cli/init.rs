//! `paceway init`: prints the configuration of a vendor, which the tests run against a pretend one, as docs/vendors shows it.

use super::{CommandError, print};
use crate::suggest::suggest;

/// The files of config/vendors, by the name of the vendor.
macro_rules! recipes {
    ($($name:literal)*) => {
        [$(Recipe {
            name: $name,
            file: include_str!(concat!("../../config/vendors/", $name, ".yaml")),
        }),*]
    };
}

const RECIPES: &[Recipe] = &recipes! {
    "amazon-sp-api" "anthropic" "bedrock" "discord" "github" "google" "openai" "salesforce" "shopify-graphql" "shopify-rest"
    "slack" "stripe"
};

/// A configuration for the API of one vendor.
struct Recipe {
    name: &'static str,
    file: &'static str,
}

// === impl Recipe ===

impl Recipe {
    /// The file without its first line, which leads editors to the schema beside it in the sources.
    fn text(&self) -> &'static str {
        self.file.split_once('\n').map_or(self.file, |(_, text)| text)
    }

    /// Its purpose, in the words of its first comment.
    fn purpose(&self) -> &'static str {
        let line = self.text().lines().next().unwrap_or_default().trim_start_matches("# ");
        line.split(": docs/").next().unwrap_or(line)
    }
}

/// Prints the recipe of a vendor, or the names of all.
pub(super) fn init(vendor: Option<&str>) -> Result<(), CommandError> {
    let Some(name) = vendor else { return print(&list()) };
    match RECIPES.iter().find(|recipe| recipe.name == name) {
        Some(recipe) => print(recipe.text().trim_end()),
        None => Err(CommandError::usage(unknown(name))),
    }
}

fn list() -> String {
    let rows: Vec<_> =
        RECIPES.iter().map(|recipe| format!("{:<16} {}", recipe.name, recipe.purpose())).collect();
    let how = "`paceway init NAME > paceway.yaml` writes one; for another API, `paceway run --upstream URL --limit 5/s \
               --print`.";
    format!("{}\n\n{how}", rows.join("\n"))
}

fn unknown(name: &str) -> String {
    let names = || RECIPES.iter().map(|recipe| recipe.name);
    // `shopify` has two recipes.
    let begins = names().find(|known| known.starts_with(&name.to_lowercase()) && !name.is_empty());
    let hint = match begins {
        Some(known) => Some(format!("did you mean `{known}`?")),
        None => suggest(name, names()),
    };
    let hint = hint.map_or(".".to_owned(), |hint| format!("; {hint}"));
    let all: Vec<_> = names().collect();
    format!("error: `{name}` is no recipe{hint} There are {}", all.join(", "))
}
