-- One schema with every kind of object that a read model's tables can have or have hanging off them.
--
-- Two live tables: public.account and "My Schema"."Weird ""name""". Role names are put in for :"owner" (owns the
-- tables), :"reader", :"grantor" (grants in its own name), :"runner" (runs the rebuild). A block after the line
-- "-- from N" is run from PostgreSQL N on, up to "-- everywhere".

CREATE SCHEMA "My Schema";
CREATE SCHEMA seqs;
CREATE SCHEMA stats;
GRANT USAGE ON SCHEMA "My Schema", seqs, stats TO PUBLIC;
GRANT CREATE ON SCHEMA public, "My Schema", seqs, stats TO :"owner";

CREATE TYPE public.mood AS ENUM ('glad', 'sad');
CREATE DOMAIN public.email AS text CHECK (VALUE LIKE '%@%');
CREATE TYPE public.pair AS (a integer, b text);
CREATE COLLATION public.coarse (provider = libc, locale = 'C');
CREATE FUNCTION public.shout(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper($1)';
CREATE FUNCTION public.noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN INSERT INTO public.audit VALUES (TG_NAME); RETURN NULL; END';

-- --- tables around -------------------------------------------------------------------------------------------------

CREATE TABLE public.audit (what text);
CREATE TABLE public.customer (id bigint PRIMARY KEY, country text, UNIQUE (id, country));
CREATE TABLE public.region (id integer, part integer, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE public.region_1 PARTITION OF public.region FOR VALUES IN (1);
CREATE TABLE public.region_2 PARTITION OF public.region FOR VALUES IN (2);
CREATE TABLE public.tenant_member (tenant integer, member text);
CREATE MATERIALIZED VIEW public.quota AS SELECT 1 AS tenant, 100 AS ceiling;
INSERT INTO public.customer VALUES (1, 'de'), (2, 'fr');
INSERT INTO public.region VALUES (1, 1), (2, 2);
INSERT INTO public.tenant_member VALUES (1, 'somebody');

-- --- the first live table ------------------------------------------------------------------------------------------

CREATE SEQUENCE seqs.shared AS integer START 100 INCREMENT 5 MINVALUE 10 MAXVALUE 100000 CACHE 1 CYCLE;
CREATE TABLE public.account (
    gone integer,
    id bigint GENERATED ALWAYS AS IDENTITY
        (SEQUENCE NAME public.account_numbers START WITH 1000 INCREMENT BY 7 MINVALUE 5 MAXVALUE 900000 CACHE 1 CYCLE),
    no serial,
    small smallserial,
    shared integer DEFAULT nextval('seqs.shared'),
    code text NOT NULL DEFAULT 'C-' || nextval('seqs.shared') || '-x',
    "Owner's ""name""" text COLLATE "C" DEFAULT 'it''s \ {here} %s',
    rough text COLLATE public.coarse,
    mail public.email,
    mood public.mood DEFAULT 'glad'::public.mood,
    pair public.pair DEFAULT ROW(1, 'x')::public.pair,
    balance numeric(12, 2) DEFAULT 0.00,
    tags text[] DEFAULT '{a,b}',
    span int4range,
    opened timestamptz(3) DEFAULT '2024-02-29 12:00:00+02',
    term interval DEFAULT '-1 day +02:03',
    document jsonb,
    body text,
    tenant integer DEFAULT 1,
    customer bigint,
    country text,
    region integer,
    part integer,
    parent bigint,
    loud text GENERATED ALWAYS AS (public.shout("Owner's ""name""")) STORED,
    fixed character(4),
    bits bit varying(7),
    CONSTRAINT "the key" PRIMARY KEY (id) INCLUDE (code) WITH (fillfactor = 77),
    CONSTRAINT code_once UNIQUE (code) WITH (fillfactor = 66) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT no_late UNIQUE (no) DEFERRABLE,
    CONSTRAINT "span's own" EXCLUDE USING gist (span WITH &&) WITH (fillfactor = 55) WHERE (span IS NOT NULL)
        DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT balance_sane CHECK (balance > -1000.5),
    CONSTRAINT alone CHECK (tenant > 0) NO INHERIT
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 99,
        toast.autovacuum_enabled = false, parallel_workers = 2);
ALTER TABLE public.account DROP COLUMN gone;
ALTER TABLE public.account ALTER COLUMN document SET STORAGE EXTERNAL, ALTER COLUMN body SET STORAGE MAIN,
    ALTER COLUMN body SET COMPRESSION pglz, ALTER COLUMN mail SET STATISTICS 500, ALTER COLUMN rough SET STATISTICS 0,
    ALTER COLUMN customer SET (n_distinct = -0.5, n_distinct_inherited = 7);
ALTER TABLE public.account ADD CONSTRAINT late CHECK (country <> 'xx') NOT VALID;
ALTER TABLE public.account ADD CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES public.customer
    ON UPDATE CASCADE ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE public.account ADD CONSTRAINT of_country FOREIGN KEY (customer, country)
    REFERENCES public.customer (id, country) MATCH FULL NOT VALID;
ALTER TABLE public.account ADD CONSTRAINT of_region FOREIGN KEY (region, part) REFERENCES public.region;
ALTER TABLE public.account ADD CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES public.account ON DELETE CASCADE;

CREATE INDEX "weird index" ON public.account USING btree
    (tenant DESC NULLS LAST, "Owner's ""name""" COLLATE "C" text_pattern_ops, (balance * 2)) INCLUDE (no)
    WITH (fillfactor = 50, deduplicate_items = off) WHERE code <> ' ON public.account ';
ALTER INDEX "weird index" ALTER COLUMN 3 SET STATISTICS 321;
CREATE UNIQUE INDEX account_mail ON public.account (lower(mail::text)) WHERE mail IS NOT NULL;
CREATE UNIQUE INDEX account_small ON public.account (small);
CREATE INDEX account_document ON public.account USING gin (document jsonb_path_ops) WITH (fastupdate = off);
CREATE INDEX account_opened ON public.account USING brin (opened) WITH (pages_per_range = 16);
CREATE INDEX account_hash ON public.account USING hash (rough);
CREATE INDEX account_tags ON public.account USING gin (tags);
ALTER TABLE public.account CLUSTER ON account_small;
ALTER TABLE public.account ALTER COLUMN small SET NOT NULL, REPLICA IDENTITY USING INDEX account_small;

CREATE STATISTICS public.account_ties (ndistinct, dependencies, mcv) ON tenant, country FROM public.account;
CREATE STATISTICS stats.account_ties ON (balance * 2), (lower(code)) FROM public.account;
ALTER STATISTICS public.account_ties SET STATISTICS 77;

CREATE TRIGGER first_one BEFORE INSERT OR UPDATE OF code, balance ON public.account
    FOR EACH ROW WHEN (NEW.balance > 0) EXECUTE FUNCTION public.noop('it''s', '2');
CREATE TRIGGER teller AFTER INSERT ON public.account FOR EACH ROW EXECUTE FUNCTION public.tell();
CREATE TRIGGER whole AFTER UPDATE ON public.account REFERENCING OLD TABLE AS was NEW TABLE AS is_now
    FOR EACH STATEMENT EXECUTE FUNCTION public.noop();
CREATE TRIGGER emptied AFTER TRUNCATE ON public.account FOR EACH STATEMENT EXECUTE FUNCTION public.noop();
CREATE TRIGGER off AFTER DELETE ON public.account FOR EACH ROW EXECUTE FUNCTION public.noop();
CREATE TRIGGER always AFTER DELETE ON public.account FOR EACH ROW EXECUTE FUNCTION public.noop();
CREATE TRIGGER replicated AFTER DELETE ON public.account FOR EACH ROW EXECUTE FUNCTION public.noop();
CREATE CONSTRAINT TRIGGER checker AFTER INSERT ON public.account FROM public.customer
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.noop();
ALTER TABLE public.account DISABLE TRIGGER off, ENABLE ALWAYS TRIGGER always, ENABLE REPLICA TRIGGER replicated;

CREATE RULE "log it" AS ON DELETE TO public.account WHERE OLD.balance > 5
    DO ALSO INSERT INTO public.audit SELECT OLD.code || '; ON' FROM public.tenant_member;
CREATE RULE stop AS ON UPDATE TO public.account WHERE OLD.code = 'fixed' DO INSTEAD NOTHING;
ALTER TABLE public.account DISABLE RULE stop;
CREATE RULE other_rule AS ON INSERT TO public.account DO ALSO NOTIFY something;
ALTER TABLE public.account ENABLE ALWAYS RULE other_rule;

-- --- the second one ------------------------------------------------------------------------------------------------

CREATE TABLE "My Schema"."Weird ""name""" (
    "Key" uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    account bigint NOT NULL CONSTRAINT "of account" REFERENCES public.account (id) ON DELETE RESTRICT,
    line integer GENERATED BY DEFAULT AS IDENTITY (START WITH -1 INCREMENT BY -1 MINVALUE -500 MAXVALUE -1),
    counter bigserial,
    shared integer DEFAULT nextval('seqs.shared'),
    note text,
    CONSTRAINT same_name UNIQUE (line)
);
ALTER SEQUENCE "My Schema"."Weird ""name""_counter_seq" RENAME TO "Sequence ""of"" it";
CREATE INDEX same_index ON "My Schema"."Weird ""name""" (note);
CREATE INDEX "My Schema" ON "My Schema"."Weird ""name""" (account, shared);
ALTER TABLE "My Schema"."Weird ""name""" REPLICA IDENTITY FULL;
ALTER TABLE public.account ADD COLUMN favourite uuid
    CONSTRAINT favourite REFERENCES "My Schema"."Weird ""name""" DEFERRABLE INITIALLY DEFERRED;

-- --- others that mention them --------------------------------------------------------------------------------------

CREATE TABLE public.card (
    id integer PRIMARY KEY,
    account bigint,
    code text,
    line integer,
    CONSTRAINT card_account FOREIGN KEY (account) REFERENCES public.account ON DELETE CASCADE ON UPDATE CASCADE,
    CONSTRAINT card_line FOREIGN KEY (line) REFERENCES "My Schema"."Weird ""name""" (line) DEFERRABLE
);
ALTER TABLE public.card ADD CONSTRAINT card_late FOREIGN KEY (account) REFERENCES public.account NOT VALID;
COMMENT ON CONSTRAINT card_account ON public.card IS 'a card''s account';
COMMENT ON CONSTRAINT of_customer ON public.account IS 'an account''s customer';

CREATE VIEW public.account_short WITH (security_barrier) AS
    SELECT id, code, balance AS "the balance" FROM public.account WHERE code <> 'public.account' AND tenant = 1;
CREATE VIEW public.account_open AS SELECT id, code, tenant FROM public.account WHERE tenant > 0 WITH LOCAL CHECK OPTION;
ALTER VIEW public.account_open ALTER COLUMN tenant SET DEFAULT 3;
CREATE VIEW public.a_outer AS
    SELECT s.id, s.code, a.tenant, c.country, q.ceiling FROM public.account_short s JOIN public.account a USING (id)
    LEFT JOIN public.customer c ON c.id = a.customer LEFT JOIN public.quota q ON q.tenant = a.tenant;
CREATE VIEW public.second_level AS SELECT count(*) AS n FROM public.a_outer;
CREATE VIEW "My Schema"."by key" AS
    SELECT a.*, count(w."Key") AS lines, json_agg(w) AS whole FROM public.account a
    LEFT JOIN "My Schema"."Weird ""name""" w ON w.account = a.id GROUP BY a.id;
CREATE RECURSIVE VIEW public.account_tree (id, depth) AS
    SELECT id, 0 FROM public.account WHERE parent IS NULL
    UNION ALL SELECT a.id, t.depth + 1 FROM public.account a JOIN account_tree t ON a.parent = t.id;
CREATE VIEW public.account_written AS SELECT id, code FROM public.account;
CREATE TRIGGER instead INSTEAD OF INSERT ON public.account_written FOR EACH ROW EXECUTE FUNCTION public.noop();
COMMENT ON VIEW public.account_short IS 'short';
COMMENT ON COLUMN public.account_short.id IS 'short id';

CREATE FUNCTION public.balance_of(account bigint DEFAULT 1) RETURNS numeric LANGUAGE sql STABLE PARALLEL SAFE COST 7
    SET work_mem = '4MB'
BEGIN ATOMIC
    SELECT a.balance FROM public.account a JOIN public.customer c ON c.id = a.customer
    WHERE a.id = balance_of.account;
END;
CREATE FUNCTION "My Schema"."first ""line"""() RETURNS SETOF integer LANGUAGE sql IMMUTABLE SECURITY DEFINER LEAKPROOF
    RETURN (SELECT min(line) FROM "My Schema"."Weird ""name""");
CREATE FUNCTION public.late_bound() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM public.account';

ALTER TABLE public.tenant_member ENABLE ROW LEVEL SECURITY;
CREATE POLICY sees ON public.tenant_member FOR SELECT TO :"reader", :"grantor"
    USING (EXISTS (SELECT FROM public.account a WHERE a.tenant = tenant_member.tenant));
CREATE POLICY adds ON public.tenant_member AS RESTRICTIVE FOR INSERT
    WITH CHECK (tenant IN (SELECT shared FROM "My Schema"."Weird ""name"""));

CREATE PUBLICATION listed FOR TABLE public.customer, public.account WITH (publish = 'insert, update');
CREATE PUBLICATION second FOR TABLE "My Schema"."Weird ""name""";
COMMENT ON PUBLICATION listed IS 'listed';

-- --- row security, owners, grants ----------------------------------------------------------------------------------

CREATE POLICY "own rows" ON public.account TO :"reader" USING (tenant = 1);
CREATE POLICY members ON public.account AS RESTRICTIVE FOR SELECT
    USING (EXISTS (SELECT FROM public.tenant_member m WHERE m.tenant = account.tenant));
CREATE POLICY "no deletes" ON public.account FOR DELETE TO :"reader", :"grantor" USING (false);
CREATE POLICY writes ON public.account FOR UPDATE USING (tenant > 0) WITH CHECK (tenant = 1 AND code <> '');
ALTER TABLE public.account ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY sleeping ON "My Schema"."Weird ""name""" USING (account > 0);

ALTER TABLE public.account OWNER TO :"owner";
ALTER VIEW public.account_short OWNER TO :"owner";
ALTER FUNCTION public.balance_of OWNER TO :"owner";
ALTER STATISTICS stats.account_ties OWNER TO :"owner";

GRANT SELECT ON public.account TO PUBLIC;
GRANT SELECT, INSERT ON public.account TO :"grantor" WITH GRANT OPTION;
GRANT UPDATE (balance, code), REFERENCES (id) ON public.account TO :"grantor" WITH GRANT OPTION;
REVOKE TRUNCATE ON public.account FROM :"owner";
SET ROLE :"grantor";
GRANT SELECT ON public.account TO :"reader" WITH GRANT OPTION;
GRANT INSERT (code), UPDATE (balance) ON public.account TO :"reader";
SET ROLE :"reader";
GRANT SELECT (id) ON public.account TO :"runner";
RESET ROLE;
GRANT USAGE, SELECT ON SEQUENCE public.account_numbers TO :"reader" WITH GRANT OPTION;
GRANT USAGE ON SEQUENCE public.account_no_seq, seqs.shared TO :"reader";
GRANT SELECT (note), UPDATE ON "My Schema"."Weird ""name""" TO :"reader";
GRANT SELECT ON public.account_short, public.a_outer, "My Schema"."by key" TO :"reader";
REVOKE EXECUTE ON FUNCTION public.balance_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION public.balance_of TO :"reader";
-- What would leak into tables that the runner makes, and what new tables here would get:
ALTER DEFAULT PRIVILEGES FOR ROLE :"runner" GRANT ALL ON TABLES TO :"reader";
ALTER DEFAULT PRIVILEGES FOR ROLE :"runner" GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE :"runner" GRANT USAGE ON SEQUENCES TO :"grantor";
ALTER DEFAULT PRIVILEGES FOR ROLE :"runner" REVOKE DELETE ON TABLES FROM :"runner";
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA public GRANT DELETE ON TABLES TO :"reader";

-- --- comments ------------------------------------------------------------------------------------------------------

COMMENT ON TABLE public.account IS E'a table \\ with ''quotes'', {braces} and %s';
COMMENT ON COLUMN public.account."Owner's ""name""" IS 'whose';
COMMENT ON CONSTRAINT "the key" ON public.account IS 'key';
COMMENT ON CONSTRAINT "span's own" ON public.account IS 'span';
COMMENT ON CONSTRAINT balance_sane ON public.account IS 'sane';
COMMENT ON CONSTRAINT late ON public.account IS 'late';
COMMENT ON CONSTRAINT checker ON public.account IS 'of a constraint trigger';
COMMENT ON INDEX public."weird index" IS 'index';
COMMENT ON INDEX public."the key" IS 'key''s index';
COMMENT ON TRIGGER teller ON public.account IS 'teller';
COMMENT ON RULE "log it" ON public.account IS 'rule';
COMMENT ON POLICY "own rows" ON public.account IS 'policy';
COMMENT ON STATISTICS stats.account_ties IS 'ties';
COMMENT ON SEQUENCE public.account_numbers IS 'numbers';
COMMENT ON SEQUENCE "My Schema"."Sequence ""of"" it" IS 'counter';

-- from 15
ALTER TABLE public.account ADD CONSTRAINT nulls_once UNIQUE NULLS NOT DISTINCT (fixed, bits);
CREATE UNIQUE INDEX account_nulls ON public.account (fixed, tenant, id) NULLS NOT DISTINCT WHERE tenant > 1;
ALTER TABLE public.account ADD CONSTRAINT of_country_too FOREIGN KEY (customer, country)
    REFERENCES public.customer (id, country) ON DELETE SET NULL (country);
CREATE VIEW public.account_invoked WITH (security_invoker, security_barrier = false) AS
    SELECT id, code FROM public.account;
GRANT SELECT ON public.account_invoked TO :"reader";
CREATE PUBLICATION filtered FOR TABLE public.account (small, "Owner's ""name""", code)
    WHERE (small > 5 AND "Owner's ""name""" <> 'public.account') WITH (publish = 'insert');
ALTER SEQUENCE public.account_numbers SET UNLOGGED;
-- from 17
GRANT MAINTAIN ON public.account TO :"reader";
-- from 18
ALTER TABLE public.account ADD COLUMN twice numeric GENERATED ALWAYS AS (balance * 2) VIRTUAL;
ALTER TABLE public.account ADD CONSTRAINT "tenant there" NOT NULL tenant;
ALTER TABLE public.account ADD CONSTRAINT opened_there NOT NULL opened NO INHERIT;
ALTER TABLE public.account ADD CONSTRAINT region_there NOT NULL region NOT VALID;
COMMENT ON CONSTRAINT "tenant there" ON public.account IS 'named';
COMMENT ON CONSTRAINT region_there ON public.account IS 'named and late';
ALTER TABLE public.account ADD CONSTRAINT paper CHECK (balance > 0) NOT ENFORCED;
ALTER TABLE public.account ADD CONSTRAINT paper_key FOREIGN KEY (customer) REFERENCES public.customer NOT ENFORCED;
CREATE TABLE public.paper_card (account bigint CONSTRAINT paper_card REFERENCES public.account NOT ENFORCED);
CREATE TABLE public.parted (account bigint CONSTRAINT parted_account REFERENCES public.account, k integer)
    PARTITION BY LIST (k);
CREATE TABLE public.parted_1 PARTITION OF public.parted FOR VALUES IN (1);
CREATE TABLE public.booked (room int4range, at tsrange, CONSTRAINT booked_key PRIMARY KEY (room, at WITHOUT OVERLAPS));
ALTER TABLE "My Schema"."Weird ""name""" ADD COLUMN room int4range, ADD COLUMN at tsrange;
ALTER TABLE "My Schema"."Weird ""name""" ADD CONSTRAINT "in a room" FOREIGN KEY (room, PERIOD at)
    REFERENCES public.booked (room, PERIOD at);
ALTER TABLE "My Schema"."Weird ""name""" ADD CONSTRAINT room_once UNIQUE (room, at WITHOUT OVERLAPS);
-- everywhere

-- --- rows and positions --------------------------------------------------------------------------------------------

ALTER TABLE public.account DISABLE TRIGGER teller;
INSERT INTO public.account ("Owner's ""name""", mail, span, document, body, customer, country, region, part, fixed, balance)
SELECT 'owner ' || g, 'a' || g || '@x', int4range(g * 10, g * 10 + 5), jsonb_build_object('n', g), repeat('b' || g, 900),
       g % 2 + 1, CASE g % 2 WHEN 0 THEN 'de' ELSE 'fr' END, 1, 1, to_char(g, 'FM0000'), g * 1.5
FROM generate_series(1, 40) g;
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE public.account ENABLE TRIGGER teller;
UPDATE public.account SET parent = 1000 WHERE id > 1000;
INSERT INTO "My Schema"."Weird ""name""" (account, note)
SELECT id, 'note ' || id FROM public.account WHERE id < 1200;
INSERT INTO public.card SELECT g, 1000 + 7 * g, 'c', -g FROM generate_series(1, 10) g;
SELECT setval('public.account_no_seq', 4711, false), setval('"My Schema"."Sequence ""of"" it"', 99, true);
