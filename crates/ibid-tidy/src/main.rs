//! Prints what the rules find in the source tree: `ibid-tidy [--counts] [RULE]… [PATH]…`.

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    print!("{}", ibid_tidy::list(&arguments)?);
    Ok(())
}
