//! Header fields by which a client asks for a method other than the one on the wire. They can only make a request guarded,
//! never exempt it.

use http::{HeaderMap, Method};

use super::routes::{Routes, Ruling, upper_case};

/// Decides about a request, and returns the method that the decision is for: the one on the wire, unless that would pass and
/// an override field names one that would not. The upstream may use either.
pub(super) fn judge<'r, 'p>(
    routes: &'r Routes,
    method: &Method,
    headers: &HeaderMap,
    path: &'p str,
) -> (Method, Ruling<'r, 'p>) {
    let ruling = routes.judge(method, path);
    if matches!(ruling, Ruling::Passes) {
        for named in named_methods(headers) {
            let ruling = routes.judge(&named, path);
            if !matches!(ruling, Ruling::Passes) {
                return (named, ruling);
            }
        }
    }
    (method.clone(), ruling)
}

/// Returns the methods that override fields name, in upper case. One that cannot be parsed counts as POST, because some
/// framework may accept it.
fn named_methods(headers: &HeaderMap) -> impl Iterator<Item = Method> {
    let lines = headers.iter().filter(|(name, _)| is_override_field(name.as_str()));
    lines
        .flat_map(|(_, value)| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter_map(|word| match word {
            b"" => None,
            word => {
                Some(Method::from_bytes(word).map_or(Method::POST, |named| upper_case(&named).into_owned()))
            }
        })
}

/// Returns whether a field names the method, in any spelling that CGI and its successors read as the same name.
fn is_override_field(name: &str) -> bool {
    let reads_as = |field: &str| {
        let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
        name.len() == field.len() && name.bytes().map(fold).eq(field.bytes())
    };
    OVERRIDE_FIELDS.iter().any(|field| reads_as(field))
}

/// The fields that common frameworks read.
const OVERRIDE_FIELDS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{ReservedBy, Rule};
    use http::{HeaderName, HeaderValue};
    use ibid_core::policy::Policy;

    #[test]
    fn an_override_field_can_only_tighten() {
        let rule = |method, pattern: &str, policy| Rule {
            methods: vec![method],
            pattern: pattern.to_owned(),
            policy,
            reserved_by: ReservedBy::Layer,
        };
        let rules = vec![
            rule(Method::PUT, "/orders/{id}", Some(Policy::default())),
            rule(Method::POST, "/open", None),
        ];
        let routes = Routes::new(Policy::default(), rules).unwrap();
        for (method, path, field, value, guarded_by) in [
            ("GET", "/a", "x-http-method-override", "POST", Some("POST")),
            ("GET", "/a", "X-HTTP-Method", "post", Some("POST")),
            ("GET", "/a", "x_http_method_override", "patch", Some("PATCH")),
            ("GET", "/a", "x-method-override", "GET, delete, PATCH", Some("PATCH")),
            ("GET", "/a", "x-method-override", "P(ST", Some("POST")),
            ("GET", "/a", "x-method-override", "PUT", None),
            ("GET", "/a", "x-method-override", " ", None),
            ("GET", "/a", "x-other", "POST", None),
            ("GET", "/orders/1", "x-method-override", "PUT", Some("PUT")),
            ("POST", "/orders/1", "x-method-override", "GET", Some("POST")),
            ("POST", "/orders/1", "x-method-override", "PUT", Some("POST")),
            ("POST", "/open", "x-method-override", "GET", None),
            ("POST", "/open", "x-method-override", "PATCH", Some("PATCH")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(field.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let (by, ruling) = judge(&routes, &method, &headers, path);
            let by = matches!(ruling, Ruling::Guarded { .. }).then_some(by.as_str());
            assert_eq!(by, guarded_by, "{method} {path} {field}: {value}");
        }
    }
}
