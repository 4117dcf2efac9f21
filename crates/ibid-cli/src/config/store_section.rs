//! Reads `[store]`: the store's URL, and the engine's settings about it.

use super::toml_reader::{Reader, Section};
use super::{StoreOptions, StoreUrl, at, non_empty, setting};
use crate::args::GatewayArgs;

pub(super) fn read_store_section(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flags: &GatewayArgs,
) -> (Option<StoreUrl>, StoreOptions) {
    let mut section = root.section("store", "store");
    let url = read_store(&mut section, reader, non_empty(&flags.store));
    let usual = StoreOptions::default();
    let options = StoreOptions {
        begin_timeout: section.positive("begin_timeout").unwrap_or(usual.begin_timeout),
        finish_wait: section.positive("finish_wait").unwrap_or(usual.finish_wait),
        cache_bytes: section.size("cache_bytes").unwrap_or(usual.cache_bytes),
        cache_ttl: section.positive("cache_ttl").unwrap_or(usual.cache_ttl),
        identity_valid_for: section.seconds("identity_valid_for").unwrap_or(usual.identity_valid_for),
    };
    section.finish();
    (url, options)
}

pub(super) fn read_store(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flag: Option<&str>,
) -> Option<StoreUrl> {
    let weak = section.choice("durability", &[("durable", false), ("weak", true)], &[]).unwrap_or(false);
    let mut url = read_store_url(section, reader, flag)?;
    if weak {
        url.accept_weak_durability();
    }
    Some(url)
}

fn read_store_url(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flag: Option<&str>,
) -> Option<StoreUrl> {
    let flag = flag.map(|value| (value, "--store", "IBID_STORE"));
    let Some((text, position, line)) = setting(section, reader, "url", flag) else {
        return section.line_of("url").is_none().then(StoreUrl::default);
    };
    let parsed = StoreUrl::parse(&text);
    if let Err(failure) = &parsed {
        reader.keep(line, at(&position, failure.clone()));
    }
    parsed.ok()
}
