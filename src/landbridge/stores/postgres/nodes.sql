-- The table of nodes in PostgreSQL. SCHEMA stands for the store's name. It is a hint, which decides who claims a unit,
-- so nothing here waits for the disk or a standby. Times are microseconds of this server's clock.

CREATE TABLE IF NOT EXISTS SCHEMA.node (
    id text PRIMARY KEY,
    name text NOT NULL,
    record text NOT NULL,  -- JSON
    started bigint NOT NULL,
    expires bigint NOT NULL,
    life bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS SCHEMA.owner (unit integer PRIMARY KEY, node text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS SCHEMA.drained (name text PRIMARY KEY);

-- Everything, as one JSON text. The moment is now where none is given.
CREATE OR REPLACE FUNCTION SCHEMA.nodes_read1(moment bigint DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
    SELECT json_build_object(
        'now', coalesce(moment, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
        'nodes', (SELECT coalesce(json_agg(json_build_array(n.record, n.started, n.expires)), '[]') FROM SCHEMA.node n),
        'owners', (SELECT coalesce(json_agg(json_build_array(o.unit, o.node)), '[]') FROM SCHEMA.owner o),
        'drained', (SELECT coalesce(json_agg(d.name), '[]') FROM SCHEMA.drained d)
    )::text
$$;

-- One change at a time. Leases that a clock which was set back has made longer are cut, and nodes that are long gone
-- are forgotten. Returns the time.
CREATE OR REPLACE FUNCTION SCHEMA.nodes_begin1(remembered bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
BEGIN
    LOCK TABLE SCHEMA.node IN SHARE ROW EXCLUSIVE MODE;
    moment := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    UPDATE SCHEMA.node SET expires = moment + life WHERE expires > moment + life;
    DELETE FROM SCHEMA.node WHERE expires < moment - remembered;
    DELETE FROM SCHEMA.owner o WHERE NOT EXISTS (SELECT FROM SCHEMA.node n WHERE n.id = o.node);
    RETURN moment;
END $$;

-- Answers the table; or LB010 with the record of the live node that has the name.
CREATE OR REPLACE FUNCTION SCHEMA.nodes_beat1(
    remembered bigint, my_id text, my_name text, my_life bigint, my_record text, take integer[], release integer[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := SCHEMA.nodes_begin1(remembered);
    holder text;
BEGIN
    SELECT n.record INTO holder FROM SCHEMA.node n WHERE n.name = my_name AND n.id <> my_id AND n.expires > moment;
    IF FOUND THEN
        RAISE EXCEPTION 'taken' USING ERRCODE = 'LB010', DETAIL = holder;
    END IF;
    DELETE FROM SCHEMA.owner o USING SCHEMA.node n WHERE n.id = o.node AND n.name = my_name AND n.id <> my_id;
    DELETE FROM SCHEMA.node n WHERE n.name = my_name AND n.id <> my_id;
    INSERT INTO SCHEMA.node AS n VALUES (my_id, my_name, my_record, moment, moment + my_life, my_life)
    ON CONFLICT (id) DO UPDATE SET record = excluded.record, expires = excluded.expires, life = excluded.life;
    DELETE FROM SCHEMA.owner o WHERE o.node = my_id AND o.unit = ANY(release);
    INSERT INTO SCHEMA.owner AS o SELECT u, my_id FROM unnest(take) AS u
    ON CONFLICT (unit) DO UPDATE SET node = my_id
    WHERE NOT EXISTS (SELECT FROM SCHEMA.node n WHERE n.id = o.node AND n.expires > moment);
    RETURN SCHEMA.nodes_read1(moment);
END $$;

CREATE OR REPLACE FUNCTION SCHEMA.nodes_leave1(remembered bigint, my_id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM SCHEMA.nodes_begin1(remembered);
    DELETE FROM SCHEMA.owner o WHERE o.node = my_id;
    DELETE FROM SCHEMA.node n WHERE n.id = my_id;
    RETURN SCHEMA.nodes_read1();
END $$;

-- LB011: no node has the name.
CREATE OR REPLACE FUNCTION SCHEMA.nodes_drain1(remembered bigint, its_name text, draining boolean) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM SCHEMA.nodes_begin1(remembered);
    IF NOT draining THEN
        DELETE FROM SCHEMA.drained d WHERE d.name = its_name;
    ELSIF NOT EXISTS (SELECT FROM SCHEMA.node n WHERE n.name = its_name) THEN
        RAISE EXCEPTION 'unknown' USING ERRCODE = 'LB011';
    ELSE
        INSERT INTO SCHEMA.drained VALUES (its_name) ON CONFLICT DO NOTHING;
    END IF;
    RETURN SCHEMA.nodes_read1();
END $$;
