// Cluster API's provider for AWS: its CRDs judge what the test of the takeover makes. Nothing of it is built.
module github.com/drover-io/drover/hack/tools/cluster-api-provider-aws

go 1.26.6

require sigs.k8s.io/cluster-api-provider-aws/v2 v2.13.0
