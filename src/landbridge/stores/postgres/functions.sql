-- What Landbridge keeps in PostgreSQL, and what it does there. SCHEMA stands for the store's name.

CREATE TABLE IF NOT EXISTS SCHEMA.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    units integer NOT NULL,
    functions text NOT NULL  -- the digest of this file, so that another version of it is put in its place
);

CREATE TABLE IF NOT EXISTS SCHEMA.unit (
    unit integer PRIMARY KEY,
    epoch bigint NOT NULL,
    number bigint NOT NULL,  -- of the last commit of this epoch
    claimant bytea NOT NULL DEFAULT '',  -- who has claimed it
    asked bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The number of the last commit of earlier epochs.
CREATE TABLE IF NOT EXISTS SCHEMA.past (
    unit integer, epoch bigint, number bigint NOT NULL, PRIMARY KEY (unit, epoch)
);

-- The bounds of each log: from its first offset until the one that comes next.
CREATE TABLE IF NOT EXISTS SCHEMA.log (
    log bigint PRIMARY KEY,
    unit integer NOT NULL,
    first bigint NOT NULL,
    until bigint NOT NULL,
    bytes bigint NOT NULL,
    time bigint NOT NULL,
    forgotten bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS log_unit ON SCHEMA.log (unit);

-- Stored batches, and how many entries of logs have each.
CREATE TABLE IF NOT EXISTS SCHEMA.batch (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, holders integer NOT NULL, data bytea NOT NULL
);
ALTER TABLE SCHEMA.batch ALTER COLUMN data SET STORAGE EXTERNAL;

-- Where batches stand in logs.
CREATE TABLE IF NOT EXISTS SCHEMA.entry (
    log bigint, first bigint NOT NULL, until bigint, time bigint NOT NULL, size bigint NOT NULL, crc bigint NOT NULL,
    batch bigint NOT NULL,
    choice bytea,  -- which messages of the batch the log has; NULL: all
    PRIMARY KEY (log, until)
);

CREATE TABLE IF NOT EXISTS SCHEMA.document (
    unit integer, kind bytea, key bytea, value bytea NOT NULL, PRIMARY KEY (unit, kind, key)
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS SCHEMA.ledger (
    log bigint, producer bytea, entry bytea NOT NULL, last bigint, born bigint NOT NULL, PRIMARY KEY (log, producer)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS ledger_last ON SCHEMA.ledger (log, last) WHERE last IS NOT NULL;

-- Become the owner. Returns the new epoch; the same one, if the claim is asked for again.
CREATE OR REPLACE FUNCTION SCHEMA.claim(of_unit integer, by bytea) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known SCHEMA.unit;
BEGIN
    INSERT INTO SCHEMA.unit (unit, epoch, number) VALUES (of_unit, 0, 0) ON CONFLICT DO NOTHING;
    SELECT * INTO known FROM SCHEMA.unit WHERE unit = of_unit FOR UPDATE;
    IF known.claimant = by THEN
        UPDATE SCHEMA.unit SET asked = asked + 1 WHERE unit = of_unit;
        RETURN known.epoch;
    END IF;
    INSERT INTO SCHEMA.past VALUES (of_unit, known.epoch, known.number);
    DELETE FROM SCHEMA.past WHERE unit = of_unit AND epoch <= known.epoch - 16;
    UPDATE SCHEMA.unit SET epoch = known.epoch + 1, number = 0, claimant = by WHERE unit = of_unit;
    RETURN known.epoch + 1;
END $$;

-- Forget the producers whose last entry is below. Returns when the youngest of them was born.
CREATE OR REPLACE FUNCTION SCHEMA.forget(of_log bigint, below bigint) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (DELETE FROM SCHEMA.ledger WHERE log = of_log AND last < below RETURNING born)
    SELECT coalesce(max(born), 0) FROM gone
$$;

-- Remove the entries of a log up to an offset, and the batches that no other entry has. Returns the bytes of the
-- entries; NULL where there was none.
CREATE OR REPLACE FUNCTION SCHEMA.remove(of_log bigint, before bigint) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (DELETE FROM SCHEMA.entry WHERE log = of_log AND until <= before RETURNING batch, size),
    each AS (SELECT batch, count(*) AS times FROM gone GROUP BY batch),
    kept AS (
        UPDATE SCHEMA.batch SET holders = holders - each.times FROM each WHERE id = each.batch AND holders > each.times
    ),
    freed AS (DELETE FROM SCHEMA.batch USING each WHERE id = each.batch AND holders <= each.times)
    SELECT sum(size)::bigint FROM gone
$$;

CREATE OR REPLACE FUNCTION SCHEMA.append(
    of_log bigint, of_unit integer, at bigint, upto bigint, of_time bigint, of_size bigint, of_crc bigint, of_batch bigint,
    of_choice bytea
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO SCHEMA.entry VALUES (of_log, at, upto, of_time, of_size, of_crc, of_batch, of_choice);
    INSERT INTO SCHEMA.log VALUES (of_log, of_unit, at, upto, of_size, of_time, 0)
    ON CONFLICT (log) DO UPDATE
    SET until = excluded.until, bytes = log.bytes + excluded.bytes, time = excluded.time
$$;

-- The commit of this number of the unit, once, however often it is asked for. Answers:
--   done    it was done now
--   known   it had been done before. The answer writes as well, so that a standby has what is older when it has this.
--   fenced  another owner has claimed the unit; nothing was written
--   lost    the server doesn't know what it has answered before: epoch and number that it knows
-- A write that breaks the rules ends it as an error: LB001 for a gap, LB002 for a source that isn't there.
CREATE OR REPLACE FUNCTION SCHEMA.commit(
    of_unit integer, of_epoch bigint, of_number bigint,
    ops text[], logs bigint[], firsts bigint[], untils bigint[], times bigint[], ones bigint[], twos bigint[],
    kinds bytea[], keys bytea[], datas bytea[],
    OUT word text, OUT a bigint, OUT b bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    known SCHEMA.unit;
    past_number bigint;
    bounds SCHEMA.log;
    source SCHEMA.entry;
    freed bigint;
    id bigint;
    w record;
BEGIN
    a := 0;
    b := 0;
    SELECT * INTO known FROM SCHEMA.unit u WHERE u.unit = of_unit FOR UPDATE;
    IF known.epoch > of_epoch THEN
        SELECT p.number INTO past_number FROM SCHEMA.past p WHERE p.unit = of_unit AND p.epoch = of_epoch;
        IF past_number >= of_number THEN
            UPDATE SCHEMA.unit u SET asked = asked + 1 WHERE u.unit = of_unit;
            word := 'known';
        ELSE
            word := 'fenced';
            a := known.epoch;
        END IF;
        RETURN;
    END IF;
    IF known.epoch IS NULL OR known.epoch < of_epoch OR known.number < of_number - 1 THEN
        word := 'lost';
        a := coalesce(known.epoch, 0);
        b := coalesce(known.number, 0);
        RETURN;
    END IF;
    IF known.number >= of_number THEN
        UPDATE SCHEMA.unit u SET asked = asked + 1 WHERE u.unit = of_unit;
        word := 'known';
        RETURN;
    END IF;
    UPDATE SCHEMA.unit u SET number = of_number WHERE u.unit = of_unit;
    FOR w IN SELECT * FROM unnest(ops, logs, firsts, untils, times, ones, twos, kinds, keys, datas)
             WITH ORDINALITY AS t(op, log, first, until, time, one, two, kind, key, data, at)
    LOOP
        IF w.op IN ('A', 'C', 'T') THEN
            SELECT * INTO bounds FROM SCHEMA.log l WHERE l.log = w.log;
        END IF;
        CASE w.op
        WHEN 'A', 'C' THEN
            -- The same order of complaints as in the other drivers: a copy's source first.
            IF w.op = 'C' THEN
                SELECT * INTO source FROM SCHEMA.entry e WHERE e.log = w.one AND e.until > w.two ORDER BY e.until LIMIT 1;
                IF NOT FOUND OR source.first <> w.two THEN
                    RAISE EXCEPTION 'no source' USING ERRCODE = 'LB002', DETAIL = format('%s  0', w.at - 1);
                END IF;
                IF (w.data IS NULL AND source.until - source.first <> w.until - w.first)
                   OR (w.data IS NOT NULL
                       AND (source.choice IS NOT NULL OR source.until - source.first < w.until - w.first)) THEN
                    RAISE EXCEPTION 'source' USING ERRCODE = 'LB002',
                        DETAIL = format('%s %s %s', w.at - 1, source.until, (source.choice IS NOT NULL)::integer);
                END IF;
            END IF;
            IF bounds.log IS NOT NULL AND (bounds.until <> w.first OR w.time < bounds.time) THEN
                RAISE EXCEPTION 'gap' USING
                    ERRCODE = 'LB001', DETAIL = format('%s %s %s', w.at - 1, bounds.until, bounds.time);
            END IF;
            IF w.op = 'A' THEN
                INSERT INTO SCHEMA.batch AS n (holders, data) VALUES (1, w.data) RETURNING n.id INTO id;
                PERFORM SCHEMA.append(w.log, of_unit, w.first, w.until, w.time, length(w.data), w.one, id, NULL);
            ELSE
                UPDATE SCHEMA.batch s SET holders = holders + 1 WHERE s.id = source.batch;
                PERFORM SCHEMA.append(
                    w.log, of_unit, w.first, w.until, w.time, source.size, source.crc, source.batch,
                    coalesce(w.data, source.choice));
            END IF;
        WHEN 'T' THEN
            -- one: may the log be one that has a ledger and never a batch?
            IF w.one = 1 AND coalesce(bounds.until, 0) = 0 THEN
                INSERT INTO SCHEMA.log AS l VALUES (w.log, of_unit, 0, 0, 0, 0, SCHEMA.forget(w.log, w.first))
                ON CONFLICT (log) DO UPDATE SET forgotten = greatest(l.forgotten, excluded.forgotten);
            ELSIF bounds.log IS NOT NULL THEN
                freed := SCHEMA.remove(w.log, w.first);
                IF freed IS NOT NULL THEN
                    SELECT e.first INTO bounds.first FROM SCHEMA.entry e WHERE e.log = w.log ORDER BY e.until LIMIT 1;
                    bounds.first := coalesce(bounds.first, bounds.until);
                    UPDATE SCHEMA.log l
                    SET first = bounds.first, bytes = l.bytes - freed,
                        forgotten = greatest(l.forgotten, SCHEMA.forget(w.log, bounds.first))
                    WHERE l.log = w.log;
                END IF;
            END IF;
        WHEN 'D' THEN
            PERFORM SCHEMA.remove(w.log, 9223372036854775807);
            DELETE FROM SCHEMA.log l WHERE l.log = w.log;
            DELETE FROM SCHEMA.ledger l WHERE l.log = w.log;
        WHEN 'P' THEN
            INSERT INTO SCHEMA.document VALUES (of_unit, w.kind, w.key, w.data)
            ON CONFLICT (unit, kind, key) DO UPDATE SET value = excluded.value;
        WHEN 'X' THEN
            DELETE FROM SCHEMA.document d WHERE d.unit = of_unit AND d.kind = w.kind AND d.key = w.key;
        WHEN 'L' THEN
            INSERT INTO SCHEMA.ledger VALUES (w.log, w.key, w.data, w.one, w.two)
            ON CONFLICT (log, producer) DO UPDATE
            SET entry = excluded.entry, last = excluded.last, born = excluded.born;
        WHEN 'F' THEN
            DELETE FROM SCHEMA.ledger l WHERE l.log = w.log AND l.producer = w.key;
        END CASE;
    END LOOP;
    word := 'done';
END $$;

CREATE OR REPLACE FUNCTION SCHEMA.read(
    of_log bigint, at bigint, room bigint,
    OUT first bigint, OUT until bigint, OUT "time" bigint, OUT size bigint, OUT crc bigint, OUT data bytea,
    OUT choice bytea
) RETURNS SETOF record LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    e SCHEMA.entry;
    is_first boolean := true;
BEGIN
    FOR e IN SELECT * FROM SCHEMA.entry n WHERE n.log = of_log AND n.until > at ORDER BY n.until LOOP
        room := room - e.size;
        EXIT WHEN room < 0 AND NOT is_first;
        is_first := false;
        first := e.first;
        until := e.until;
        "time" := e.time;
        size := e.size;
        crc := e.crc;
        choice := e.choice;
        data := (SELECT s.data FROM SCHEMA.batch s WHERE s.id = e.batch);
        RETURN NEXT;
    END LOOP;
END $$;

-- The first offset of the oldest batch at or after a time: by halving the offsets, as times never decrease.
CREATE OR REPLACE FUNCTION SCHEMA.seek(of_log bigint, of_time bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    low bigint;
    high bigint;
    middle bigint;
    e SCHEMA.entry;
BEGIN
    SELECT l.first, l.until INTO low, high FROM SCHEMA.log l WHERE l.log = of_log;
    IF NOT FOUND THEN RETURN 0; END IF;
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT * INTO e FROM SCHEMA.entry n WHERE n.log = of_log AND n.until > middle ORDER BY n.until LIMIT 1;
        IF e.time >= of_time THEN high := e.first; ELSE low := e.until; END IF;
    END LOOP;
    RETURN low;
END $$;
