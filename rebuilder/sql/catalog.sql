-- What the catalog is asked. Every query runs under an empty search_path, so that all printed names are qualified.
-- Catalogs differ by version; a column that not all of 14 to 18 have is read as to_jsonb(row) ->> 'column'.

-- resolve: the OID behind a name as the caller's search_path sees it
SELECT to_regclass(%(name)s)::oid::bigint AS oid

-- quiet: make what the server prints independent of the session
SELECT set_config('search_path', '', true), set_config('quote_all_identifiers', 'off', true),
       set_config('datestyle', 'ISO', true), set_config('intervalstyle', 'postgres', true),
       set_config('extra_float_digits', '3', true), set_config('standard_conforming_strings', 'on', true)

-- impatient: printing a definition locks the tables in it; behind somebody's DDL that is not worth waiting for
SELECT set_config('lock_timeout', '2s', true)

-- session: who we are, where, and what default privileges of ours would give away
SELECT r.rolname::text AS "user", current_setting('role') AS role, current_setting('server_version_num')::int AS version,
       current_database()::text AS database, r.rolsuper AS superuser,
       ARRAY(SELECT privilege_type FROM aclexplode(acldefault('r', r.oid)) ORDER BY 1) AS table_privileges,
       ARRAY(SELECT privilege_type FROM aclexplode(acldefault('S', r.oid)) ORDER BY 1) AS sequence_privileges,
       ARRAY(SELECT DISTINCT CASE WHEN x.grantee = 0 THEN '' ELSE pg_get_userbyid(x.grantee)::text END
             FROM pg_default_acl d, aclexplode(d.defaclacl) x
             WHERE d.defaclrole = r.oid AND d.defaclobjtype IN ('r', 'S') ORDER BY 1) AS default_grantees
FROM pg_roles r
WHERE r.rolname = current_user

-- tables: the tables themselves
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, pg_get_userbyid(c.relowner) AS owner, coalesce(am.amname, '') AS access_method,
       coalesce(s.spcname, '') AS tablespace, coalesce(c.reloptions, '{}') AS options,
       coalesce(toast.reloptions, '{}') AS toast_options,
       CASE WHEN c.reloftype <> 0 THEN format_type(c.reloftype, NULL) END AS of_type,
       c.relrowsecurity AS row_security, c.relforcerowsecurity AS force_row_security,
       c.relreplident::text AS replica_identity, c.reltype::bigint AS row_type,
       coalesce(t.typarray, 0)::bigint AS array_type, obj_description(c.oid, 'pg_class') AS comment, c.relacl IS NULL AS no_acl,
       c.reltuples::float8 AS rows
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_type t ON t.oid = c.reltype
LEFT JOIN pg_am am ON am.oid = c.relam
LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
WHERE c.oid = ANY(%(oids)s::oid[])

-- size: bytes of heap, toast and indexes (locks the table for a moment, so it is asked apart)
SELECT coalesce(pg_total_relation_size(%(oid)s::oid), 0)::bigint AS bytes

-- columns: columns with defaults
SELECT a.attnum::int AS number, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
       a.atttypid::bigint AS type_oid,
       CASE WHEN a.attcollation <> 0 AND a.attcollation <> t.typcollation
            THEN quote_ident(cn.nspname) || '.' || quote_ident(co.collname) END AS collation,
       a.attnotnull AS not_null, a.attidentity::text AS identity, a.attgenerated::text AS generated,
       pg_get_expr(d.adbin, d.adrelid) AS expression, a.attstorage::text AS storage, t.typstorage::text AS type_storage,
       a.attcompression::text AS compression, nullif(a.attstattarget, -1)::int AS statistics_target,
       coalesce(a.attoptions, '{}') AS options, col_description(a.attrelid, a.attnum) AS comment
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(oid)s::oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- constraints: constraints of the table
SELECT con.oid::bigint AS oid, con.conname AS name, con.contype::text AS kind, pg_get_constraintdef(con.oid) AS definition,
       con.convalidated AS validated, coalesce((to_jsonb(con) ->> 'conenforced')::bool, true) AS enforced,
       con.condeferrable AS deferrable, con.condeferred AS deferred,
       coalesce((to_jsonb(con) ->> 'conperiod')::bool, false) AS overlaps, coalesce(con.conkey, '{}') AS columns,
       con.conindid::bigint AS index, con.conrelid::bigint AS "table", con.confrelid::bigint AS referred,
       coalesce(con.confkey, '{}') AS referred_columns, obj_description(con.oid, 'pg_constraint') AS comment
FROM pg_constraint con
WHERE con.conrelid = %(oid)s::oid AND con.conparentid = 0
ORDER BY con.contype, con.conname

-- indexes: indexes of the table, those of constraints too
SELECT i.indexrelid::bigint AS oid, ic.relname AS name,
       'CREATE ' || CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || quote_ident(ic.relname)
           || ' ON ' || quote_ident(tn.nspname) || '.' || quote_ident(tc.relname) || ' ' AS head,
       pg_get_indexdef(i.indexrelid) AS definition, i.indisunique AS "unique",
       i.indisvalid AND i.indisready AND i.indislive AS valid, i.indisclustered AS clustered,
       i.indisreplident AS replica_identity, con.conname AS "constraint",
       ARRAY(SELECT DISTINCT d.refobjsubid FROM pg_depend d
             WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = i.indrelid AND d.refobjsubid > 0 ORDER BY 1) AS columns,
       coalesce(ic.reloptions, '{}') AS options, coalesce(s.spcname, '') AS tablespace,
       ARRAY(SELECT ARRAY[a.attnum::int, a.attstattarget::int] FROM pg_attribute a
             WHERE a.attrelid = i.indexrelid AND nullif(a.attstattarget, -1) IS NOT NULL ORDER BY a.attnum) AS targets,
       obj_description(i.indexrelid, 'pg_class') AS comment,
       ARRAY(SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
               AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'x' ORDER BY 1) AS extensions
FROM pg_index i
JOIN pg_class ic ON ic.oid = i.indexrelid
JOIN pg_class tc ON tc.oid = i.indrelid
JOIN pg_namespace tn ON tn.oid = tc.relnamespace
LEFT JOIN pg_constraint con ON con.conindid = i.indexrelid AND con.conrelid = i.indrelid AND con.contype IN ('p', 'u', 'x')
LEFT JOIN pg_tablespace s ON s.oid = ic.reltablespace
WHERE i.indrelid = %(oid)s::oid
ORDER BY ic.relname

-- statistics: extended statistics objects on the table
SELECT s.oid::bigint AS oid, n.nspname AS schema, s.stxname AS name,
       'CREATE STATISTICS ' || quote_ident(n.nspname) || '.' || quote_ident(s.stxname) || ' ' AS head,
       ' FROM ' || quote_ident(tn.nspname) || '.' || quote_ident(tc.relname) AS tail,
       pg_get_statisticsobjdef(s.oid) AS definition,
       ARRAY(SELECT DISTINCT d.refobjsubid FROM pg_depend d
             WHERE d.classid = 'pg_statistic_ext'::regclass AND d.objid = s.oid AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = s.stxrelid AND d.refobjsubid > 0 ORDER BY 1) AS columns,
       nullif(s.stxstattarget, -1)::int AS target, pg_get_userbyid(s.stxowner) AS owner,
       obj_description(s.oid, 'pg_statistic_ext') AS comment
FROM pg_statistic_ext s
JOIN pg_namespace n ON n.oid = s.stxnamespace
JOIN pg_class tc ON tc.oid = s.stxrelid
JOIN pg_namespace tn ON tn.oid = tc.relnamespace
WHERE s.stxrelid = %(oid)s::oid
ORDER BY 2, 3

-- triggers: triggers of the table that people made
SELECT t.tgname AS name, pg_get_triggerdef(t.oid) AS definition, t.tgenabled::text AS enabled,
       ARRAY(SELECT DISTINCT d.refobjsubid FROM pg_depend d
             WHERE d.classid = 'pg_trigger'::regclass AND d.objid = t.oid AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = t.tgrelid AND d.refobjsubid > 0 ORDER BY 1) AS columns,
       t.tgconstrrelid::bigint AS referred, t.tgfoid::regprocedure::text AS function,
       has_function_privilege(t.tgfoid, 'EXECUTE') AS executable, obj_description(t.oid, 'pg_trigger') AS comment,
       CASE WHEN t.tgconstraint <> 0 THEN obj_description(t.tgconstraint, 'pg_constraint') END AS constraint_comment,
       ARRAY(SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE d.classid = 'pg_trigger'::regclass AND d.objid = t.oid
               AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'x' ORDER BY 1) AS extensions
FROM pg_trigger t
WHERE t.tgrelid = %(oid)s::oid AND NOT t.tgisinternal
ORDER BY t.tgname

-- rules: rules of the table
SELECT r.rulename AS name, pg_get_ruledef(r.oid) AS definition, r.ev_enabled::text AS enabled,
       ARRAY(SELECT DISTINCT d.refobjsubid FROM pg_depend d
             WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = r.ev_class AND d.refobjsubid > 0 ORDER BY 1) AS columns,
       obj_description(r.oid, 'pg_rewrite') AS comment
FROM pg_rewrite r
WHERE r.ev_class = %(oid)s::oid AND r.rulename <> '_RETURN'
ORDER BY r.rulename

-- policies: row security policies of the table
SELECT p.polname AS name, p.polcmd::text AS command, p.polpermissive AS permissive,
       ARRAY(SELECT CASE WHEN role = 0 THEN '' ELSE pg_get_userbyid(role)::text END
             FROM unnest(p.polroles) role) AS roles,
       pg_get_expr(p.polqual, p.polrelid) AS using, pg_get_expr(p.polwithcheck, p.polrelid) AS "check",
       ARRAY(SELECT DISTINCT d.refobjsubid FROM pg_depend d
             WHERE d.classid = 'pg_policy'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_class'::regclass
               AND d.refobjid = p.polrelid AND d.refobjsubid > 0 ORDER BY 1) AS columns,
       obj_description(p.oid, 'pg_policy') AS comment
FROM pg_policy p
WHERE p.polrelid = %(oid)s::oid
ORDER BY p.polname

-- sequences: sequences that a column owns or draws from
WITH tie AS (
    SELECT d.objid AS sequence, d.refobjsubid AS number, d.deptype = 'i' AS identity, true AS owned, false AS used
    FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %(oid)s::oid
      AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
    UNION ALL
    SELECT d.refobjid, a.adnum, false, false, true
    FROM pg_attrdef a
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass
    WHERE a.adrelid = %(oid)s::oid
)
SELECT c.oid::bigint AS oid, a.attname AS "column", n.nspname AS schema, c.relname AS name,
       quote_literal(quote_ident(n.nspname) || '.' || quote_ident(c.relname)) || '::regclass' AS literal,
       bool_or(tie.identity) AS identity, bool_or(tie.owned) AS owned, bool_or(tie.used) AS used,
       format_type(s.seqtypid, NULL) AS type, s.seqstart AS start, s.seqincrement AS increment, s.seqmin AS minimum,
       s.seqmax AS maximum, s.seqcache AS cache, s.seqcycle AS cycle,
       -- Before 15 a sequence had none of its own.
       CASE WHEN current_setting('server_version_num')::int >= 150000 THEN c.relpersistence::text ELSE '' END AS persistence,
       pg_get_userbyid(c.relowner) AS owner, obj_description(c.oid, 'pg_class') AS comment, c.relacl IS NULL AS no_acl
FROM tie
JOIN pg_class c ON c.oid = tie.sequence AND c.relkind = 'S'
JOIN pg_sequence s ON s.seqrelid = c.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = %(oid)s::oid AND a.attnum = tie.number
GROUP BY c.oid, a.attnum, a.attname, n.nspname, c.relname, s.seqrelid, c.relpersistence, c.relowner
ORDER BY a.attnum, n.nspname, c.relname

-- acl: privileges of a table or sequence and of its columns, one row for each
SELECT c.oid::bigint AS oid, 0 AS number, pg_get_userbyid(x.grantor)::text AS grantor,
       CASE WHEN x.grantee = 0 THEN '' ELSE pg_get_userbyid(x.grantee)::text END AS grantee,
       x.privilege_type AS privilege, x.is_grantable AS grantable
FROM pg_class c, aclexplode(c.relacl) x
WHERE c.oid = ANY(%(oids)s::oid[])
UNION ALL
SELECT a.attrelid::bigint, a.attnum, pg_get_userbyid(x.grantor)::text,
       CASE WHEN x.grantee = 0 THEN '' ELSE pg_get_userbyid(x.grantee)::text END, x.privilege_type, x.is_grantable
FROM pg_attribute a, aclexplode(a.attacl) x
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, 2, 3, 4, 5, 6

-- set_position: move a sequence of ours
SELECT pg_catalog.setval(%(sequence)s::regclass, %(value)s, %(called)s)

-- dependents: what hangs off the tables, their row and array types, keys and identity sequences, their own parts left out
WITH live AS (
    SELECT c.oid, c.reltype, t.typarray
    FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_type t ON t.oid = c.reltype
    WHERE c.oid = ANY(%(oids)s::oid[])
), thing AS (
    SELECT 'pg_catalog.pg_class'::regclass AS class, oid, oid AS live, 'table' AS via FROM live
    UNION ALL
    SELECT 'pg_catalog.pg_type'::regclass, reltype, oid, 'type' FROM live WHERE reltype <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_type'::regclass, typarray, oid, 'type' FROM live WHERE typarray <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass, i.indexrelid, i.indrelid, 'index'
    FROM pg_catalog.pg_index i JOIN live ON live.oid = i.indrelid
    UNION ALL
    SELECT 'pg_catalog.pg_constraint'::regclass, con.oid, con.conrelid, 'constraint'
    FROM pg_catalog.pg_constraint con JOIN live ON live.oid = con.conrelid
    UNION ALL
    SELECT 'pg_catalog.pg_class'::regclass, d.objid, live.oid, 'identity'
    FROM live JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = live.oid
    JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'i' AND d.refobjsubid > 0
), own AS (
    SELECT class, oid FROM thing
    UNION ALL
    SELECT 'pg_catalog.pg_attrdef'::regclass, a.oid FROM pg_catalog.pg_attrdef a JOIN live ON live.oid = a.adrelid
    UNION ALL
    SELECT 'pg_catalog.pg_trigger'::regclass, t.oid FROM pg_catalog.pg_trigger t LEFT JOIN live ON live.oid = t.tgrelid
    WHERE live.oid IS NOT NULL OR t.tgisinternal
    UNION ALL
    SELECT 'pg_catalog.pg_rewrite'::regclass, r.oid FROM pg_catalog.pg_rewrite r JOIN live ON live.oid = r.ev_class
    UNION ALL
    SELECT 'pg_catalog.pg_policy'::regclass, p.oid FROM pg_catalog.pg_policy p JOIN live ON live.oid = p.polrelid
    UNION ALL
    SELECT 'pg_catalog.pg_statistic_ext'::regclass, s.oid
    FROM pg_catalog.pg_statistic_ext s JOIN live ON live.oid = s.stxrelid
), dependent AS (
    SELECT d.classid AS class, d.objid AS oid, thing.live, thing.via, d.objsubid AS part,
           array_agg(DISTINCT d.refobjsubid) FILTER (WHERE d.refobjsubid > 0 AND thing.via = 'table') AS columns
    FROM pg_catalog.pg_depend d
    JOIN thing ON (d.refclassid, d.refobjid) = (thing.class, thing.oid)
    LEFT JOIN own ON (own.class, own.oid) = (d.classid, d.objid)
    LEFT JOIN pg_catalog.pg_class o ON d.classid = 'pg_catalog.pg_class'::regclass AND o.oid = d.objid
    LEFT JOIN pg_catalog.pg_constraint f ON d.classid = 'pg_catalog.pg_constraint'::regclass AND f.oid = d.objid
    WHERE own.oid IS NULL
      AND o.relkind IS DISTINCT FROM 't'
      AND NOT coalesce(o.relkind = 'S' AND d.deptype IN ('a', 'i'), false)  -- a serial column's sequence
      AND coalesce(f.conparentid, 0) = 0                                    -- a partition's share of a foreign key
    GROUP BY d.classid, d.objid, thing.live, thing.via, d.objsubid
)
SELECT x.class::regclass::text AS class, x.oid::bigint AS oid, x.live::bigint AS live, x.via,
       coalesce(x.columns, '{}')::int[] AS columns, o.type AS kind, o.identity,
       CASE x.class::regclass::text
           WHEN 'pg_rewrite' THEN CASE WHEN r.rulename <> '_RETURN' THEN 'rule' WHEN rc.relkind = 'v' THEN 'view' ELSE 'matview' END
           WHEN 'pg_proc' THEN 'function'
           WHEN 'pg_policy' THEN 'policy'
           WHEN 'pg_constraint' THEN CASE con.contype WHEN 'f' THEN 'foreign-key' ELSE 'constraint' END
           WHEN 'pg_publication_rel' THEN 'publication'
           WHEN 'pg_attrdef' THEN 'default'
           WHEN 'pg_class' THEN CASE WHEN x.via = 'type' THEN 'column' WHEN x.via = 'table' THEN 'inheritance' ELSE 'relation' END
           ELSE 'other' END AS category,
       CASE WHEN r.oid IS NOT NULL THEN r.ev_class ELSE x.oid END::bigint AS subject,
       encode(sha256(convert_to(coalesce(
           (to_jsonb(r) - '{oid}'::text[] || jsonb_build_object('relation', to_jsonb(rc) - %(moving)s::text[]))::text,
           (to_jsonb(p) - '{proacl}'::text[])::text, to_jsonb(pol)::text, (to_jsonb(con) - '{conindid}'::text[])::text,
           (to_jsonb(pr) || jsonb_build_object('publication', to_jsonb(pub)))::text, ''), 'UTF8')), 'hex') AS state
FROM dependent x
CROSS JOIN LATERAL pg_catalog.pg_identify_object(x.class, x.oid, x.part) o
LEFT JOIN pg_catalog.pg_rewrite r ON x.class = 'pg_catalog.pg_rewrite'::regclass AND r.oid = x.oid
LEFT JOIN pg_catalog.pg_class rc ON rc.oid = r.ev_class
LEFT JOIN pg_catalog.pg_proc p ON x.class = 'pg_catalog.pg_proc'::regclass AND p.oid = x.oid
LEFT JOIN pg_catalog.pg_policy pol ON x.class = 'pg_catalog.pg_policy'::regclass AND pol.oid = x.oid
LEFT JOIN pg_catalog.pg_constraint con ON x.class = 'pg_catalog.pg_constraint'::regclass AND con.oid = x.oid
LEFT JOIN pg_catalog.pg_publication_rel pr ON x.class = 'pg_catalog.pg_publication_rel'::regclass AND pr.oid = x.oid
LEFT JOIN pg_catalog.pg_publication pub ON pub.oid = pr.prpubid
ORDER BY 1, 2, 3, 4

-- above: all views over the tables, directly or not, outermost first
WITH RECURSIVE up AS (
    SELECT oid, 0 AS depth FROM unnest(%(oids)s::oid[]) oid
    UNION
    SELECT r.ev_class, up.depth + 1
    FROM up
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = up.oid AND d.classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite r ON r.oid = d.objid AND r.rulename = '_RETURN' AND r.ev_class <> up.oid
)
SELECT v.oid::bigint AS oid, n.nspname AS schema, v.relname AS name, pg_get_userbyid(v.relowner) AS owner
FROM (SELECT oid, max(depth) AS depth FROM up GROUP BY oid) deepest
JOIN pg_class v ON v.oid = deepest.oid AND v.relkind = 'v'
JOIN pg_namespace n ON n.oid = v.relnamespace
ORDER BY deepest.depth DESC, n.nspname, v.relname

-- views: definitions of views
SELECT v.oid::bigint AS oid, n.nspname AS schema, v.relname AS name, pg_get_userbyid(v.relowner) AS owner,
       v.relpersistence::text AS persistence, pg_get_viewdef(v.oid) AS definition, coalesce(v.reloptions, '{}') AS options,
       coalesce((SELECT array_agg(a.atttypid::bigint ORDER BY a.attnum) FROM pg_attribute a
                 WHERE a.attrelid = v.oid AND a.attnum > 0 AND NOT a.attisdropped), '{}') AS types
FROM pg_class v
JOIN pg_namespace n ON n.oid = v.relnamespace
WHERE v.oid = ANY(%(oids)s::oid[])
ORDER BY n.nspname, v.relname

-- functions: definitions of functions with an SQL body
SELECT p.oid::bigint AS oid, n.nspname AS schema, p.proname AS name, pg_get_userbyid(p.proowner) AS owner,
       p.provolatile::text AS volatility, p.prosqlbody IS NOT NULL AS atomic,
       p.proleakproof OR p.prosupport <> 0 AS superusers,
       CASE WHEN p.prosqlbody IS NOT NULL THEN pg_get_functiondef(p.oid) END AS definition,
       pg_get_function_identity_arguments(p.oid) AS arguments,
       ARRAY(SELECT t::bigint FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]) || p.prorettype) t) AS types
FROM pg_proc p
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.oid = ANY(%(oids)s::oid[])
ORDER BY n.nspname, p.proname, 8

-- other_policies: policies of other tables
SELECT p.oid::bigint AS oid, p.polname AS name, c.oid::bigint AS "table", n.nspname AS schema, c.relname AS table_name,
       pg_get_userbyid(c.relowner) AS owner, pg_get_expr(p.polqual, p.polrelid) AS using,
       pg_get_expr(p.polwithcheck, p.polrelid) AS "check"
FROM pg_policy p
JOIN pg_class c ON c.oid = p.polrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.oid = ANY(%(oids)s::oid[])
ORDER BY n.nspname, c.relname, p.polname

-- referencing: foreign keys of other tables
SELECT con.oid::bigint AS oid, con.conname AS name, pg_get_constraintdef(con.oid) AS definition, con.convalidated AS validated,
       coalesce((to_jsonb(con) ->> 'conenforced')::bool, true) AS enforced, con.confrelid::bigint AS referred,
       con.confkey AS referred_columns, c.oid::bigint AS "table", n.nspname AS schema, c.relname AS table_name,
       c.relkind::text AS table_kind, pg_get_userbyid(c.relowner) AS owner,
       obj_description(con.oid, 'pg_constraint') AS comment
FROM pg_constraint con
JOIN pg_class c ON c.oid = con.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE con.oid = ANY(%(oids)s::oid[])
ORDER BY n.nspname, c.relname, con.conname

-- publications: publications that list the tables (14: no filters, no column lists)
SELECT pr.oid::bigint AS oid, pub.pubname AS name, pg_get_userbyid(pub.pubowner) AS owner, pr.prrelid::bigint AS "table",
       n.nspname AS schema, c.relname AS table_name, NULL::text AS filter, NULL::text[] AS columns
FROM pg_publication_rel pr JOIN pg_publication pub ON pub.oid = pr.prpubid
JOIN pg_class c ON c.oid = pr.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE pr.prrelid = ANY(%(oids)s::oid[])
ORDER BY pub.pubname

-- filtered_publications: publications that list the tables, with filter and column list
SELECT pr.oid::bigint AS oid, pub.pubname AS name, pg_get_userbyid(pub.pubowner) AS owner, pr.prrelid::bigint AS "table",
       n.nspname AS schema, c.relname AS table_name, pg_get_expr(pr.prqual, pr.prrelid) AS filter,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM unnest(pr.prattrs) k
        JOIN pg_attribute a ON a.attrelid = pr.prrelid AND a.attnum = k) AS columns
FROM pg_publication_rel pr JOIN pg_publication pub ON pub.oid = pr.prpubid
JOIN pg_class c ON c.oid = pr.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE pr.prrelid = ANY(%(oids)s::oid[])
ORDER BY pub.pubname

-- read_by: relations that texts of ours mention, other than the tables themselves
SELECT DISTINCT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       bool_or(d.classid = 'pg_rewrite'::regclass AND d.objid = ANY(%(rules)s::oid[])) AS rule,
       has_table_privilege(c.oid, 'SELECT') AS readable,
       has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE')
           OR has_table_privilege(c.oid, 'INSERT') OR has_table_privilege(c.oid, 'TRUNCATE') AS writable
FROM pg_depend d
JOIN pg_class c ON c.oid = d.refobjid AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.refclassid = 'pg_class'::regclass
  AND (d.classid = 'pg_rewrite'::regclass AND d.objid = ANY(%(rules)s::oid[] || %(views)s::oid[])
       OR d.classid = 'pg_proc'::regclass AND d.objid = ANY(%(functions)s::oid[])
       OR d.classid = 'pg_policy'::regclass AND d.objid = ANY(%(policies)s::oid[])
       OR d.classid = 'pg_trigger'::regclass AND d.objid = ANY(%(triggers)s::oid[]))
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
GROUP BY c.oid, n.nspname, c.relname, c.relkind
ORDER BY n.nspname, c.relname

-- referred: tables that the foreign keys refer to
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       has_table_privilege(c.oid, 'REFERENCES') AS referable,
       has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE')
           OR has_table_privilege(c.oid, 'TRUNCATE') AS lockable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%(oids)s::oid[])
ORDER BY n.nspname, c.relname

-- own_texts: the tables' own rules, policies and triggers, whose texts may mention other tables
SELECT ARRAY(SELECT oid::bigint FROM pg_rewrite WHERE ev_class = ANY(%(oids)s::oid[])) AS rules,
       ARRAY(SELECT oid::bigint FROM pg_policy WHERE polrelid = ANY(%(oids)s::oid[])) AS policies,
       ARRAY(SELECT oid::bigint FROM pg_trigger WHERE tgrelid = ANY(%(oids)s::oid[]) AND NOT tgisinternal) AS triggers

-- fingerprint: the definition of the tables as the catalog stores it, part by part; reads no text, takes no lock
WITH live AS (
    SELECT c.oid, c.relname, c.reltoastrelid, c.reltype FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
), owned AS (
    SELECT DISTINCT d.objid AS oid, live.oid AS live
    FROM live JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = live.oid AND d.refobjsubid > 0
    JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    WHERE d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
), part AS (
    SELECT live, 'table' AS kind, '' AS name, to_jsonb(c) - %(moving)s::text[] AS state, 'pg_class'::regclass AS class, c.oid
    FROM (SELECT oid AS live FROM live) l JOIN pg_class c ON c.oid = l.live
    UNION ALL
    SELECT live.oid, 'toast options', '', to_jsonb(c.reloptions), NULL, NULL
    FROM live JOIN pg_class c ON c.oid = live.reltoastrelid
    UNION ALL
    SELECT live.oid, 'row type', '', jsonb_build_array(t.typacl::text, t.typowner), 'pg_type', t.oid
    FROM live JOIN pg_type t ON t.oid = live.reltype
    UNION ALL
    SELECT a.attrelid, 'column', a.attname,
           to_jsonb(a) - '{attacl,attcacheoff,atthasmissing,attmissingval,attstattarget}'::text[]
               || jsonb_build_object('target', nullif(a.attstattarget, -1), 'default', d.adbin::text,
                                     'comment', col_description(a.attrelid, a.attnum)), NULL, NULL
    FROM live JOIN pg_attribute a ON a.attrelid = live.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT con.conrelid, 'constraint', con.conname, to_jsonb(con) - '{oid,conindid}'::text[], 'pg_constraint', con.oid
    FROM live JOIN pg_constraint con ON con.conrelid = live.oid
    UNION ALL
    SELECT i.indrelid, 'index', ic.relname,
           -- REINDEX CONCURRENTLY stores expressions anew, without the places they had in their statement.
           to_jsonb(i) - '{indexrelid,indcheckxmin,indexprs,indpred}'::text[]
               || jsonb_build_object('expressions', regexp_replace(i.indexprs::text, ':location -?[0-9]+', '', 'g'),
                                     'predicate', regexp_replace(i.indpred::text, ':location -?[0-9]+', '', 'g'),
                                     'relation', to_jsonb(ic) - %(moving)s::text[], 'targets',
                   (SELECT jsonb_agg(nullif(a.attstattarget, -1) ORDER BY a.attnum) FROM pg_attribute a
                    WHERE a.attrelid = ic.oid)), 'pg_class', ic.oid
    FROM live JOIN pg_index i ON i.indrelid = live.oid JOIN pg_class ic ON ic.oid = i.indexrelid
    UNION ALL
    SELECT s.stxrelid, 'statistics', s.stxname, to_jsonb(s) - '{stxstattarget}'::text[]
               || jsonb_build_object('target', nullif(s.stxstattarget, -1)), 'pg_statistic_ext', s.oid
    FROM live JOIN pg_statistic_ext s ON s.stxrelid = live.oid
    UNION ALL
    SELECT t.tgrelid, 'trigger', CASE WHEN t.tgisinternal THEN '' ELSE t.tgname END,
           CASE WHEN t.tgisinternal THEN jsonb_build_array(t.tgfoid, t.tgenabled)
                ELSE to_jsonb(t) - '{oid,tgconstraint,tgconstrindid}'::text[] END,
           'pg_trigger', t.oid
    FROM live JOIN pg_trigger t ON t.tgrelid = live.oid
    UNION ALL
    SELECT r.ev_class, 'rule', r.rulename, to_jsonb(r), 'pg_rewrite', r.oid
    FROM live JOIN pg_rewrite r ON r.ev_class = live.oid
    UNION ALL
    SELECT p.polrelid, 'policy', p.polname, to_jsonb(p), 'pg_policy', p.oid
    FROM live JOIN pg_policy p ON p.polrelid = live.oid
    UNION ALL
    SELECT owned.live, 'sequence', c.relname,
           to_jsonb(s) || jsonb_build_object('relation', to_jsonb(c) - %(moving)s::text[]), 'pg_class', c.oid
    FROM owned JOIN pg_class c ON c.oid = owned.oid JOIN pg_sequence s ON s.seqrelid = c.oid
    UNION ALL
    SELECT i.inhparent, 'child', i.inhrelid::text, '[]', NULL, NULL FROM live JOIN pg_inherits i ON i.inhparent = live.oid
)
SELECT n.nspname || '.' || c.relname AS "table", part.kind, part.name,
       encode(sha256(convert_to(jsonb_build_array(
           part.state,
           (SELECT jsonb_agg(jsonb_build_array(d.objsubid, d.description) ORDER BY d.objsubid)
            FROM pg_description d WHERE d.classoid = part.class AND d.objoid = part.oid),
           (SELECT jsonb_agg(jsonb_build_array(l.objsubid, l.provider, l.label) ORDER BY l.objsubid, l.provider)
            FROM pg_seclabel l WHERE l.classoid = part.class AND l.objoid = part.oid),
           (SELECT jsonb_agg(jsonb_build_array(d.refclassid, d.refobjid) ORDER BY d.refclassid, d.refobjid)
            FROM pg_depend d WHERE d.classid = part.class AND d.objid = part.oid AND d.deptype IN ('e', 'x'))
       )::text, 'UTF8')), 'hex') AS state
FROM part JOIN pg_class c ON c.oid = part.live JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2, 3, 4

-- owned_sequences: sequences that columns of the tables own
SELECT DISTINCT d.objid::bigint AS oid, d.deptype = 'i' AS identity
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY(%(oids)s::oid[]) AND d.refobjsubid > 0
  AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
ORDER BY 1

-- obstacles: what a table may have that nothing can carry
WITH live AS (SELECT c.* FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[]))
SELECT live.oid::bigint AS live, 'extension' AS obstacle, quote_ident(e.extname) AS name, '' AS detail
FROM live JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = live.oid AND d.deptype = 'e'
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
UNION ALL
SELECT live.oid, CASE WHEN live.relispartition THEN 'partition' ELSE 'child' END, i.inhparent::regclass::text, ''
FROM live JOIN pg_inherits i ON i.inhrelid = live.oid
UNION ALL
SELECT live.oid, 'parent', i.inhrelid::regclass::text, '' FROM live JOIN pg_inherits i ON i.inhparent = live.oid
UNION ALL
SELECT live.oid, 'security-label', quote_ident(l.provider),
       pg_describe_object(l.classoid, l.objoid, l.objsubid)
FROM live JOIN pg_seclabel l ON l.classoid = 'pg_class'::regclass AND l.objoid IN (
    SELECT live.oid UNION ALL SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = live.oid)
UNION ALL
SELECT live.oid, 'row-type', format_type(live.reltype, NULL),
       CASE WHEN t.typacl IS NOT NULL THEN 'grants' ELSE 'a comment' END
FROM live JOIN pg_type t ON t.oid = live.reltype
WHERE t.typacl IS NOT NULL OR obj_description(t.oid, 'pg_type') IS NOT NULL
UNION ALL
SELECT live.oid, 'publication-all', quote_ident(p.pubname), '' FROM live CROSS JOIN pg_publication p WHERE p.puballtables
UNION ALL
SELECT live.oid, 'subscription', quote_ident(s.subname), ''
FROM live JOIN pg_subscription_rel r ON r.srrelid = live.oid JOIN pg_subscription s ON s.oid = r.srsubid
UNION ALL
SELECT live.oid, 'internal-trigger', coalesce(con.conname, t.tgname), t.tgenabled::text
FROM live JOIN pg_trigger t ON t.tgrelid = live.oid AND t.tgisinternal AND t.tgenabled <> 'O'
LEFT JOIN pg_constraint con ON con.oid = t.tgconstraint
ORDER BY 1, 2, 3, 4

-- schema_publications: publications of a whole schema (from 15)
SELECT c.oid::bigint AS live, quote_ident(p.pubname) AS name
FROM pg_class c
JOIN pg_publication_namespace pn ON pn.pnnspid = c.relnamespace
JOIN pg_publication p ON p.oid = pn.pnpubid
WHERE c.oid = ANY(%(oids)s::oid[])
ORDER BY 1, 2

-- slots: logical slots through which a publication of this database may be subscribed
SELECT slot_name::text AS name FROM pg_replication_slots
WHERE slot_type = 'logical' AND plugin = 'pgoutput' AND database = current_database()
ORDER BY 1

-- memberships: which of these roles' objects the current role may alter, and which of them it may become
SELECT r.rolname::text AS role, pg_has_role(r.oid, 'USAGE') AS owner_rights, pg_has_role(r.oid, 'MEMBER') AS may_become
FROM pg_roles r WHERE r.rolname = ANY(%(roles)s)

-- settable_memberships: the same from 16 on, where a membership may come without SET
SELECT r.rolname::text AS role, pg_has_role(r.oid, 'USAGE') AS owner_rights, pg_has_role(r.oid, 'SET') AS may_become
FROM pg_roles r WHERE r.rolname = ANY(%(roles)s)

-- schema_usage: may a role name what is in a schema
SELECT has_schema_privilege(%(role)s, %(schema)s, 'USAGE') AS usage

-- schema_right: may the current role make tables in a schema of live
SELECT has_schema_privilege(%(schema)s, 'CREATE') AS may_create

-- print_type: a type as the catalog prints it
SELECT format_type(t.oid, %(modifier)s) AS type, t.typstorage::text AS type_storage FROM pg_type t WHERE t.oid = %(oid)s::oid
