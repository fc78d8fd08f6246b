package pgstore

import (
	"bytes"
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql migrations/*.sql
var files embed.FS

// queries are the statements of one store, with the name of its schema filled in.
type queries struct {
	insert, look, begin, complete, restore, abandon, undo, extend, lookup, forget, resolve, clean string
}

func newQueries(schema string) queries {
	read := func(name string) string { return withoutComments(mustRender("sql/"+name+".sql", schema)) }
	return queries{
		insert: read("insert"), look: read("look"), begin: read("begin"), complete: read("complete"), restore: read("restore"),
		abandon: read("abandon"), undo: read("undo"), extend: read("extend"), lookup: read("lookup"), forget: read("forget"),
		resolve: read("resolve"), clean: read("clean"),
	}
}

// withoutComments leaves out the lines that are for readers: without prepared statements, all of the text is sent
// every time.
func withoutComments(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

const (
	// bucketSQL is the bucket of a row that expires at a time: the hour from whose start on it has been over for a
	// minute at least.
	bucketSQL = `ceil((date_part('epoch', %s) + 60) / 3600)::int`

	// microsSQL is a number of microseconds as an interval.
	microsSQL = `%s::bigint * interval '1 microsecond'`
)

// mustRender fills in an embedded file. That each of them can be is seen by every test.
func mustRender(name, schema string) string {
	quoted := pgx.Identifier{schema}.Sanitize()
	funcs := template.FuncMap{
		"schema": func() string { return quoted },
		"tokens": func() string { return "'" + strings.ReplaceAll(quoted+".tokens", "'", "''") + "'" },
		"bucket": func(at string) string { return fmt.Sprintf(bucketSQL, at) },
		"micros": func(n string) string { return fmt.Sprintf(microsSQL, n) },
	}
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	if err := template.Must(template.New(name).Funcs(funcs).Parse(string(text))).Execute(&b, nil); err != nil {
		panic(err)
	}
	return b.String()
}
