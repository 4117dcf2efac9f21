//! Reads `[tenant]`: whose key it is, and which hops may say so.

use super::toml_reader::{Reader, Section};
use super::{non_empty, setting};
use crate::args::GatewayArgs;
use crate::gateway::tenant::{TenantConfig, TenantConfigError, TenantFrom, parse_net};
use crate::output::Failure;

pub(super) fn read_tenant(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flags: &GatewayArgs,
    warnings: &mut Vec<String>,
) -> Option<TenantConfig> {
    let mut section = root.section("tenant", "tenant");
    let flag = non_empty(&flags.tenant).map(|value| (value, "--tenant", "IBID_TENANT"));
    let from = setting(&mut section, reader, "from", flag);
    let is_mistyped = from.is_none() && section.line_of("from").is_some();
    let trusted = section.texts("trusted");
    let trusted_line = section.line_of("trusted").unwrap_or(section.line);
    section.finish();

    let mut nets = Vec::new();
    for text in trusted.iter().flatten() {
        match parse_net(text) {
            Some(net) if net.prefix_len() == 0 => {
                warnings.push(format!(
                    "{}: `trusted` holds `{text}`: everyone may say whose request it is and where it came from",
                    reader.position(trusted_line)
                ));
                nets.push(net);
            }
            Some(net) => nets.push(net),
            None => reader.refuse_with_hint(
                trusted_line,
                format!("`trusted` holds `{text}`, which is no network or address"),
                "write for example \"10.0.0.0/8\" or \"192.0.2.7\"; names are not looked up",
            ),
        }
    }
    let Some((text, position, line)) = from else {
        if !is_mistyped {
            let failure = Failure::usage("the gateway needs to know whose keys they are: no tenant is configured")
                .because("two clients may choose the same key, and without a tenant one would get the other's response")
                .hint(
                    "give `--tenant header:x-tenant-id`, `--tenant authorization`, or `--tenant none` if there is \
                     one tenant; or `IBID_TENANT`, or `from` under `[tenant]` in the file",
                );
            reader.keep(0, failure);
        }
        return None;
    };
    match TenantConfig::parse(&text) {
        Ok(mut how) => {
            let by_header = matches!(how.from, TenantFrom::Header(_));
            if trusted.as_ref().is_some_and(Vec::is_empty) && by_header {
                reader.refuse(trusted_line, "`trusted` is empty: then no hop's tenant header is trusted");
            }
            if trusted.is_some() {
                how.trusted = nets;
            }
            Some(how)
        }
        Err(error) => {
            let hint = match &error {
                TenantConfigError::NotYet(_) => {
                    "let a proxy authenticate and name the tenant in a header: `header:NAME`"
                }
                TenantConfigError::HeaderTaken(name) if name == "authorization" => "write `authorization`",
                _ => "use `header:NAME`, `authorization` or `none`",
            };
            reader.keep(line, Failure::usage(format!("{position} can't be used: {error}")).hint(hint));
            None
        }
    }
}
