-- Where agents stand on the globe, in degrees, where the operator said so: for what light in fibre allows.
alter table agents
    add column latitude double precision constraint agents_latitude_range check (latitude between -90 and 90),
    add column longitude double precision constraint agents_longitude_range check (longitude between -180 and 180),
    add constraint agents_position_whole check ((latitude is null) = (longitude is null));
alter table enrolments
    add column latitude double precision constraint enrolments_latitude_range check (latitude between -90 and 90),
    add column longitude double precision constraint enrolments_longitude_range check (longitude between -180 and 180),
    add constraint enrolments_position_whole check ((latitude is null) = (longitude is null));
