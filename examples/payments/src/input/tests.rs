use super::*;

fn wrong<T: Input + fmt::Debug>(body: &str) -> Vec<(String, String)> {
    match T::parse(body.as_bytes()) {
        Err(InputError::Fields(errors)) => errors.into_iter().map(|e| (e.field, e.detail)).collect(),
        other => panic!("{body}: {other:?}"),
    }
}

fn amount(json: &str) -> Result<i64, String> {
    let body = format!(r#"{{"customerId":"ann","amountCents":{json},"currency":"EUR"}}"#);
    match NewPayment::parse(body.as_bytes()) {
        Ok(payment) => Ok(payment.amount_cents),
        Err(InputError::Fields(errors)) => {
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert_eq!(errors[0].field, "amountCents");
            Err(errors[0].detail.clone())
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_payment_and_a_ride_are_read() {
    let payment = NewPayment { customer_id: "ann".into(), amount_cents: 4200, currency: "EUR".into() };
    let body = br#"{"customerId":"ann","amountCents":4200,"currency":"EUR"}"#;
    assert_eq!(NewPayment::parse(body), Ok(payment.clone()));
    let body = br#"{"origin":"a","destination":"b","customerId":"ann","amountCents":4200,"currency":"EUR"}"#;
    let ride = NewRide { payment, origin: "a".into(), destination: "b".into() };
    assert_eq!(NewRide::parse(body), Ok(ride));
}

#[test]
fn an_amount_is_a_whole_number_from_1_to_2_to_the_63_less_1() {
    assert_eq!(amount("1"), Ok(1));
    assert_eq!(amount("9223372036854775807"), Ok(i64::MAX));
    for json in ["9223372036854775808", "18446744073709551615", "18446744073709551616", "1e30"] {
        assert_eq!(amount(json), Err("must be less than 2^63".into()), "{json}");
    }
    for json in ["0", "-1", "-9223372036854775808", "-0", "-1.5", "-1e30", "0.0"] {
        assert!(amount(json).unwrap_err().starts_with("must be more than 0"), "{json}");
    }
    for json in ["1.5", "10.0", "1e3", "0.1", "9007199254740993.5"] {
        assert!(amount(json).unwrap_err().starts_with("must be a whole number"), "{json}");
    }
    for json in ["\"100\"", "null", "true", "[1]", "{}"] {
        assert!(amount(json).unwrap_err().starts_with("must be a number"), "{json}");
    }
}

#[test]
fn every_mistake_is_named_at_once() {
    let names = |errors: Vec<(String, String)>| errors.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(wrong::<NewPayment>("{}")), ["customerId", "amountCents", "currency"]);
    assert_eq!(
        names(wrong::<NewRide>(r#"{"customerId":1,"amountCents":-1,"currency":"eur","origin":""}"#)),
        ["customerId", "amountCents", "currency", "origin", "destination"]
    );
    let slip = r#"{"customerId":"ann","amountcents":5,"amountCents":5,"currency":"EUR"}"#;
    assert_eq!(wrong::<NewPayment>(slip), [("amountcents".into(), "is not a field of this request".into())]);
    let twice = r#"{"customerId":"ann","amountCents":5,"amountCents":6,"currency":"EUR"}"#;
    assert_eq!(wrong::<NewPayment>(twice), [("amountCents".into(), "is given more than once".into())]);
}

#[test]
fn texts_are_short_and_printable() {
    let customer = |text: &str| {
        let text = serde_json::to_string(text).unwrap();
        NewPayment::parse(format!(r#"{{"customerId":{text},"amountCents":1,"currency":"EUR"}}"#).as_bytes())
    };
    assert!(customer(&"a".repeat(255)).is_ok() && customer("Zoë ✓").is_ok());
    for text in ["", " ", "a\0b", "a\nb", "a\u{85}b", &"a".repeat(256), &"é".repeat(128)] {
        assert!(matches!(customer(text), Err(InputError::Fields(_))), "{text:?}");
    }
}

#[test]
fn what_is_no_object_is_malformed() {
    for body in ["", "[]", "null", "1", "{", "{}x", r#"{"a":}"#, "{\"a\":\"\u{1}\"}", r#"{"a":"\ud800"}"#] {
        assert!(matches!(NewPayment::parse(body.as_bytes()), Err(InputError::Malformed(_))), "{body}");
    }
    assert!(matches!(NewPayment::parse(b"{\"a\":\"\xff\"}"), Err(InputError::Malformed(_))));
    let many: Vec<String> = (0..100).map(|n| format!("\"f{n}\":1")).collect();
    let many = format!("{{{}}}", many.join(","));
    assert!(matches!(NewPayment::parse(many.as_bytes()), Err(InputError::Malformed(_))));
}

#[test]
fn a_name_that_is_shown_back_is_cut_between_characters() {
    let long = "é".repeat(500);
    let errors = wrong::<NewPayment>(&format!(r#"{{"a{long}":1}}"#));
    assert!(errors.last().unwrap().0.len() <= NAME_BYTES_SHOWN);
}
