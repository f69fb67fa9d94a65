// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"encoding/base64"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/drover-io/drover/cloud"
)

// Console implements cloud.Console. For instances on the Nitro hypervisor it returns the output so
// far. For others EC2 keeps the output until some minutes after the start (EC2 API Reference,
// GetConsoleOutput).
func (d *driver) Console(ctx context.Context, instance cloud.Resource) ([]byte, error) {
	text, err := d.consoleOutput(ctx, instance.ID, true)
	if refusalOf(err).code == unsupportedOperation {
		text, err = d.consoleOutput(ctx, instance.ID, false)
	}
	return text, err
}

func (d *driver) consoleOutput(ctx context.Context, id string, latest bool) ([]byte, error) {
	const op = "GetConsoleOutput"
	answer, err := d.ec2.GetConsoleOutput(ctx, &ec2.GetConsoleOutputInput{InstanceId: &id, Latest: &latest})
	if err != nil {
		return nil, d.secrets.typed(op+" "+id, err)
	}
	text, err := base64.StdEncoding.DecodeString(aws.ToString(answer.Output))
	if err != nil {
		return nil, cloud.Errorf(cloud.Unknown, "%s %s: the response is not base64", op, id)
	}
	return text, nil
}
