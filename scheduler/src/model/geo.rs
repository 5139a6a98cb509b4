//! Positions on the globe, and the shortest round trip that light in fibre allows between
//! two positions.
//!
//! A round trip that is shorter than light allows proves that a position or a clock is wrong, or
//! that a host is not where it is assumed to be. Uncertain constants are chosen so that any error
//! makes the computed shortest round trip too short, not too long.

use std::time::Duration;

/// The earth's mean radius in kilometres (IUGG).
const EARTH_RADIUS_KM: f64 = 6371.0088;
/// Speed of light in fibre in kilometres per millisecond: two thirds of 299,792.458 km/s.
const FIBRE_KM_PER_MS: f64 = 299.792_458 * 2.0 / 3.0;
/// The share by which a great circle on the sphere may be longer than the shortest path on the
/// ellipsoid. The shortest possible round trip is reduced by this share.
const SPHERE_EXCESS: f64 = 0.0056;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    latitude: f64,
    longitude: f64,
}

/// `Eq` is valid because both components are finite.
impl Eq for Position {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    /// The latitude is beyond a pole, or not a number.
    #[error("a latitude is between -90 and 90 degrees")]
    Latitude,
    /// The longitude is beyond the antimeridian, or not a number.
    #[error("a longitude is between -180 and 180 degrees")]
    Longitude,
    #[error("a position needs both a latitude and a longitude")]
    Half,
}

impl Position {
    /// Builds a position from degrees; north and east are positive.
    pub fn try_new(latitude: f64, longitude: f64) -> Result<Self, PositionError> {
        if !(-90.0..=90.0).contains(&latitude) {
            return Err(PositionError::Latitude);
        }
        if !(-180.0..=180.0).contains(&longitude) {
            return Err(PositionError::Longitude);
        }
        Ok(Self { latitude, longitude })
    }

    /// Builds a position from optional parts. Returns `None` if both parts are absent, and an error
    /// if only one part is present.
    pub fn from_parts(latitude: Option<f64>, longitude: Option<f64>) -> Result<Option<Self>, PositionError> {
        match (latitude, longitude) {
            (Some(latitude), Some(longitude)) => Self::try_new(latitude, longitude).map(Some),
            (None, None) => Ok(None),
            _ => Err(PositionError::Half),
        }
    }

    /// In degrees; north is positive.
    pub const fn latitude(self) -> f64 {
        self.latitude
    }

    /// In degrees; east is positive.
    pub const fn longitude(self) -> f64 {
        self.longitude
    }
}

/// The direction of a position from the earth's centre. The angle between two directions grows with
/// the distance between the positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Direction([f64; 3]);

/// `Eq` is valid because all components are finite.
impl Eq for Direction {}

impl From<Position> for Direction {
    fn from(position: Position) -> Self {
        let (latitude, longitude) = (position.latitude.to_radians(), position.longitude.to_radians());
        Self([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()])
    }
}

impl Direction {
    /// The cosine of the angle between the directions: 1 for the same place, -1 for antipodes.
    pub fn cosine(self, other: Self) -> f64 {
        self.0.iter().zip(other.0).map(|(one, other)| one * other).sum::<f64>().clamp(-1.0, 1.0)
    }

    /// Returns the cosine of a widened angle. `cosine` is the cosine of the original angle, which
    /// is widened by `km` kilometres on the ground.
    pub fn widened(cosine: f64, km: f64) -> f64 {
        (cosine.clamp(-1.0, 1.0).acos() + km / EARTH_RADIUS_KM).min(std::f64::consts::PI).cos()
    }
}

/// The great-circle distance in kilometres, by the haversine formula on the mean sphere.
pub fn great_circle_km(a: Position, b: Position) -> f64 {
    let half_sine = |from: f64, to: f64| ((to - from).to_radians() / 2.0).sin().powi(2);
    let along = half_sine(a.latitude, b.latitude);
    let across = half_sine(a.longitude, b.longitude);
    let haversine = along + a.latitude.to_radians().cos() * b.latitude.to_radians().cos() * across;
    // For antipodes, rounding may make the haversine exceed 1.
    2.0 * EARTH_RADIUS_KM * haversine.clamp(0.0, 1.0).sqrt().asin()
}

/// The shortest possible round trip between two positions: there and back along the great circle at
/// two thirds of the speed of light. Zero for equal positions.
pub fn least_round_trip(a: Position, b: Position) -> Duration {
    let way = great_circle_km(a, b) * (1.0 - SPHERE_EXCESS);
    // The duration is always valid, because even half the earth's circumference gives only 200 ms.
    Duration::from_secs_f64(2.0 * way / FIBRE_KM_PER_MS / 1e3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn at(latitude: f64, longitude: f64) -> Position {
        Position::try_new(latitude, longitude).unwrap()
    }

    #[test]
    fn known_distances_come_out() {
        // The distance from the equator to the pole, and half the length of the equator.
        assert!((great_circle_km(at(0.0, 0.0), at(90.0, 0.0)) - 10_007.557).abs() < 0.01);
        assert!((great_circle_km(at(0.0, -90.0), at(0.0, 90.0)) - 20_015.115).abs() < 0.01);
        let (beijing, guangzhou) = (at(39.9042, 116.4074), at(23.1291, 113.2644));
        let way = great_circle_km(beijing, guangzhou);
        assert!((way - 1888.0).abs() < 5.0, "{way}");
        let least = least_round_trip(beijing, guangzhou).as_secs_f64() * 1e3;
        assert!((least - way * 0.9944 / 99.931).abs() < 0.01, "{least}");
    }

    #[test]
    fn what_is_not_on_the_globe_is_refused() {
        for latitude in [90.1, -91.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Position::try_new(latitude, 0.0), Err(PositionError::Latitude), "{latitude}");
        }
        for longitude in [180.1, -181.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(Position::try_new(0.0, longitude), Err(PositionError::Longitude), "{longitude}");
        }
        assert_eq!(Position::from_parts(None, None), Ok(None));
        assert_eq!(Position::from_parts(Some(1.0), None), Err(PositionError::Half));
        assert_eq!(Position::from_parts(None, Some(1.0)), Err(PositionError::Half));
    }

    proptest! {
        #[test]
        fn distances_are_symmetric_bounded_and_keep_the_triangle(
            a in (-90.0..=90.0, -180.0..=180.0),
            b in (-90.0..=90.0, -180.0..=180.0),
            c in (-90.0..=90.0, -180.0..=180.0),
        ) {
            let [a, b, c] = [a, b, c].map(|(latitude, longitude)| at(latitude, longitude));
            let way = great_circle_km(a, b);
            prop_assert!((0.0..=20_016.0).contains(&way));
            prop_assert!((way - great_circle_km(b, a)).abs() < 1e-6);
            prop_assert!(way <= great_circle_km(a, c) + great_circle_km(c, b) + 1e-3);
            prop_assert!(great_circle_km(a, a) == 0.0);
        }
    }
}
