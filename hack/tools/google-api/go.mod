// Where the tests of the GCP driver take Google's discovery document of Compute Engine from. Nothing is built of it.
module github.com/drover-io/drover/hack/tools/google-api

go 1.26.0

require google.golang.org/api v0.311.0
