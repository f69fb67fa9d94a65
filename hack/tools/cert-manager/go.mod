// Where test/packaging takes cert-manager's kinds from. Nothing is built of it.
module github.com/drover-io/drover/hack/tools/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.11.5
