module github.com/seed-5bb5eb37/idem

go 1.26

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sync v0.20.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
