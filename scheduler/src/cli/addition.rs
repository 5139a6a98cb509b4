//! An agent that would be added, as it is typed after `landfall plan --add`.

use std::str::FromStr;

use landfall_proto::v1::PlannedAddition;

/// An agent that would be added, as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Addition {
    name: String,
    city: String,
    carrier: String,
    near: String,
    slots: Option<u32>,
}

impl FromStr for Addition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut name, mut city, mut carrier, mut near, mut slots) = (None, None, None, None, None);
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is no KEY=VALUE; what is wanted is city=CITY,isp=CARRIER,near=HOST"));
            };
            let (key, value) = (key.trim(), value.trim());
            let slot = match key {
                "name" => &mut name,
                "city" => &mut city,
                "isp" | "carrier" => &mut carrier,
                "near" => &mut near,
                "slots" => &mut slots,
                _ => {
                    return Err(format!("unknown key '{key}': known are city, isp (or carrier), near, slots and name"));
                }
            };
            if value.is_empty() {
                return Err(format!("{key}= says nothing"));
            }
            if slot.replace(value.to_owned()).is_some() {
                return Err(format!("{key}= is said twice"));
            }
        }
        let needed = |value: Option<String>, key: &str| value.ok_or_else(|| format!("{key}= is missing"));
        let slots = slots.map(|slots| match slots.parse::<u32>() {
            Ok(number @ 1..=10_000) => Ok(number),
            _ => Err(format!("slots={slots} is no number from 1 to 10000")),
        });
        Ok(Self {
            name: name.unwrap_or_default(),
            city: needed(city, "city")?,
            carrier: needed(carrier, "isp")?,
            near: needed(near, "near")?,
            slots: slots.transpose()?,
        })
    }
}

impl From<Addition> for PlannedAddition {
    fn from(Addition { name, city, carrier, near, slots }: Addition) -> Self {
        Self { name, city, carrier, near, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_is_read_and_what_is_wrong_with_one_is_said() {
        let read = |text: &str| text.parse::<Addition>();
        let added = Addition {
            name: String::new(),
            city: "Chengdu".into(),
            carrier: "Telecom".into(),
            near: "www.a.cn".into(),
            slots: None,
        };
        assert_eq!(read("city=Chengdu,isp=Telecom,near=www.a.cn"), Ok(added.clone()));
        let whole = Addition { name: "c-2".into(), slots: Some(8), ..added };
        assert_eq!(read("near=www.a.cn, carrier=Telecom,slots=8,city=Chengdu,name=c-2"), Ok(whole));
        for (text, said) in [
            ("city=Chengdu,isp=Telecom", "near= is missing"),
            ("isp=Telecom,near=a", "city= is missing"),
            ("city=C,near=a", "isp= is missing"),
            (
                "city=C,isp=T,near=a,colour=red",
                "unknown key 'colour': known are city, isp (or carrier), near, slots and name",
            ),
            ("city=C,isp=T,carrier=U,near=a", "carrier= is said twice"),
            ("city=,isp=T,near=a", "city= says nothing"),
            ("city=C,isp=T,near=a,slots=0", "slots=0 is no number from 1 to 10000"),
            ("Chengdu", "'Chengdu' is no KEY=VALUE; what is wanted is city=CITY,isp=CARRIER,near=HOST"),
        ] {
            assert_eq!(read(text), Err(said.to_owned()));
        }
    }
}
