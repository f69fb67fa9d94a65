// SPDX-License-Identifier: Apache-2.0

// Package registry is the one place that lists the clouds. It may import the drivers and package
// cloud, and nothing else of ours; to add a cloud is to add its row here.
package registry

import (
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws"
	"github.com/drover-io/drover/cloud/azure"
	"github.com/drover-io/drover/cloud/gcp"
	"github.com/drover-io/drover/cloud/kubevirt"
	"github.com/drover-io/drover/cloud/openstack"
	"github.com/drover-io/drover/cloud/simulated"
	"github.com/drover-io/drover/cloud/vsphere"
)

// Clouds returns a row for each cloud that Drover knows.
func Clouds() []cloud.Cloud {
	return []cloud.Cloud{
		aws.Cloud(),
		azure.Cloud(),
		gcp.Cloud(),
		kubevirt.Cloud(),
		openstack.Cloud(),
		vsphere.Cloud(),
	}
}

// WithSimulated adds the simulated cloud, for those who try Drover out. endpoint is the operator's
// own, for accounts that name none. It is not among Clouds, because an account of it sends a Secret
// to any endpoint that the account names.
func WithSimulated(endpoint string) []cloud.Cloud {
	return append(Clouds(), simulated.Cloud(endpoint))
}
