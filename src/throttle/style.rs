//! The vendors whose way to say "slow down" has a name. Without a name, the headers of an answer show the way.

use super::Condition;
use http::StatusCode;
use std::time::Duration;

/// The way in which an upstream says "slow down".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The headers of each answer decide: all families of names are read.
    Auto,
    /// `RateLimit` and `RateLimit-Policy`, or `RateLimit-Limit` and its siblings (draft-ietf-httpapi-ratelimit-headers).
    Ietf,
    /// Amazon's Selling Partner API.
    Amazon,
    /// Anthropic.
    Anthropic,
    /// Azure OpenAI, for which -1 and 0 mean unknown.
    Azure,
    /// Discord.
    Discord,
    /// GitHub, which refuses with 403 as well.
    Github,
    /// Google's APIs, where the reason in the body decides.
    Google,
    /// HubSpot.
    Hubspot,
    /// OpenAI and the many APIs that copy it.
    Openai,
    /// Opik.
    Opik,
    /// Riot Games.
    Riot,
    /// Salesforce, which refuses with 403.
    Salesforce,
    /// Shopify's REST Admin API.
    Shopify,
    /// Shopify's GraphQL APIs, which refuse with 200.
    ShopifyGraphql,
    /// Slack.
    Slack,
    /// Stripe, for which a 429 without a reason is no refusal.
    Stripe,
    /// Twilio.
    Twilio,
    /// X, formerly Twitter.
    X,
}

/// A family of header names that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// `ratelimit`, `ratelimit-remaining`.
    Ietf,
    /// `x-ratelimit-remaining`.
    Plain,
    /// `x-ratelimit-remaining-tokens`.
    Suffixed,
    /// `x-rate-limit-remaining`.
    X,
    Amazon,
    Anthropic,
    Hubspot,
    Opik,
    Riot,
    Salesforce,
    Shopify,
}

// === impl Style ===

impl Style {
    /// All styles, with their names in the configuration.
    pub const NAMED: [(&str, Self); 19] = [
        ("auto", Self::Auto),
        ("ietf", Self::Ietf),
        ("amazon", Self::Amazon),
        ("anthropic", Self::Anthropic),
        ("azure", Self::Azure),
        ("discord", Self::Discord),
        ("github", Self::Github),
        ("google", Self::Google),
        ("hubspot", Self::Hubspot),
        ("openai", Self::Openai),
        ("opik", Self::Opik),
        ("riot", Self::Riot),
        ("salesforce", Self::Salesforce),
        ("shopify", Self::Shopify),
        ("shopify-graphql", Self::ShopifyGraphql),
        ("slack", Self::Slack),
        ("stripe", Self::Stripe),
        ("twilio", Self::Twilio),
        ("x", Self::X),
    ];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, style)| *style == self).map_or("", |(name, _)| name)
    }

    /// The conditions that `when` has by default, as they are written in a configuration.
    pub fn conditions(self) -> &'static [&'static str] {
        match self {
            Self::Anthropic => &["429", "529", "503 with retry-after"],
            Self::Github => &[
                "429",
                "403 with retry-after",
                "403 with x-ratelimit-remaining=0",
                // Secondary limits without a time, as they are called now and were called before.
                "403 with json /message~\"secondary rate limit\"",
                "403 with json /message~\"abuse detection\"",
                "503 with retry-after",
            ],
            Self::Google => &[
                "429",
                "403 with json /error/errors/*/reason=rateLimitExceeded",
                "403 with json /error/errors/*/reason=userRateLimitExceeded",
                "403 with json /error/errors/*/reason=dailyLimitExceeded",
                // A call whose answer is streamed as an array is refused within one.
                "403 with json /*/error/errors/*/reason=rateLimitExceeded",
                "403 with json /*/error/errors/*/reason=userRateLimitExceeded",
                "403 with json /*/error/errors/*/reason=dailyLimitExceeded",
                "503 with retry-after",
            ],
            Self::Salesforce => &[
                "429",
                "403 with json /*/errorCode=REQUEST_LIMIT_EXCEEDED",
                "503 with retry-after",
            ],
            Self::ShopifyGraphql => &[
                "429",
                "200 with json /errors/*/extensions/code=THROTTLED",
                "503 with retry-after",
            ],
            Self::Stripe => &["429 with stripe-rate-limited-reason", "503 with retry-after"],
            _ => &["429", "503 with retry-after"],
        }
    }

    /// The conditions that `when` has by default.
    pub(super) fn when(self) -> Vec<Condition> {
        // A test reads all of them.
        self.conditions().iter().filter_map(|text| Condition::parse(text).ok()).collect()
    }

    /// The statuses of the answers that the upstream does not count, by default.
    pub(super) fn free(self) -> Vec<StatusCode> {
        match self {
            // "Making a conditional request does not count against your primary rate limit if a 304 response is returned".
            Self::Github => vec![StatusCode::NOT_MODIFIED],
            _ => Vec::new(),
        }
    }

    /// The pause after a refusal without a time, by default.
    pub fn default_pause(self) -> Duration {
        match self {
            // "If neither header is present, wait for at least one minute" (GitHub). Salesforce counts 24 hours.
            Self::Github | Self::Salesforce => Duration::from_secs(60),
            _ => Duration::from_secs(1),
        }
    }

    /// Whether headers of a family are read.
    pub(super) fn reads(self, family: Family) -> bool {
        match self {
            Self::Auto => true,
            Self::Ietf => family == Family::Ietf,
            Self::Amazon => family == Family::Amazon,
            Self::Anthropic => family == Family::Anthropic,
            Self::Azure => matches!(family, Family::Suffixed | Family::X),
            Self::Discord | Self::Github => family == Family::Plain,
            Self::Hubspot => family == Family::Hubspot,
            Self::Openai => family == Family::Suffixed,
            Self::Opik => matches!(family, Family::Opik | Family::Ietf),
            Self::Riot => family == Family::Riot,
            Self::Salesforce => family == Family::Salesforce,
            Self::Shopify => family == Family::Shopify,
            Self::X => family == Family::X,
            Self::Google | Self::ShopifyGraphql | Self::Slack | Self::Stripe | Self::Twilio => {
                false
            }
        }
    }
}
