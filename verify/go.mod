module github.com/seed-5bb5eb37/idem/verify

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/chromedp/cdproto v0.160.1
	github.com/chromedp/chromedp v0.23.1
	github.com/dunglas/httpsfv v1.1.2
	github.com/go-chi/chi/v5 v5.5.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	github.com/seed-5bb5eb37/idem v0.0.0
	github.com/seed-5bb5eb37/idem/pgstore v0.0.0
	github.com/seed-5bb5eb37/idem/redisstore v0.0.0
	github.com/seed-5bb5eb37/idem/redisstore/rueidisadapter v0.0.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.22.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgxlisten v0.0.0-20250802141604-12b92425684c // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace (
	github.com/seed-5bb5eb37/idem => ../
	github.com/seed-5bb5eb37/idem/pgstore => ../pgstore
	github.com/seed-5bb5eb37/idem/redisstore => ../redisstore
	github.com/seed-5bb5eb37/idem/redisstore/rueidisadapter => ../redisstore/rueidisadapter
)
