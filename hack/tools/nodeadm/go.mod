// Where test/packaging takes the kind from that EKS's images are configured by. Nothing is built of it.
module github.com/drover-io/drover/hack/tools/nodeadm

go 1.26.0

require github.com/awslabs/amazon-eks-ami/nodeadm v0.0.0-20240229193347-cfab22a10647
