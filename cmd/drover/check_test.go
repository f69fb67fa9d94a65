// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/tagging"
	"github.com/drover-io/drover/internal/options"
)

// TestCheckShowsNoControlCharacters tests that a cloud can't write to the user's terminal.
func TestCheckShowsNoControlCharacters(t *testing.T) {
	t.Parallel()
	k := &checker{}
	k.add("create a machine in \x1b[2Jzone", failed, "no\nsuch\u009bzone", "")
	NewWithT(t).Expect(k.results).To(Equal([]checked{{Check: "create a machine in  [2Jzone", Result: failed, Message: "no such zone"}}))
}

// TestCheckedMachine: the machine that a check asks for is no imported one, which clouds refuse to
// make.
func TestCheckedMachine(t *testing.T) {
	t.Parallel()
	if token := (&checker{}).request(nil).Token; tagging.IsImportToken(token) {
		t.Errorf("%s is the token of an imported machine", token)
	}
}

// TestCheckOnAWS checks templates on a stand-in for EC2, which has three zones. test/integration
// checks those of the simulated cloud, with a real API server.
func TestCheckOnAWS(t *testing.T) {
	t.Parallel()
	const key, secret = "AKIAMARKEDKEY000001", "marked/secret/key/of/the/account/0000001"
	for _, tc := range []struct {
		name    string
		account func(*infrav1.AWSAccount)
		machine func(*infrav1.AWSMachine)
		want    []string
		failed  bool
	}{
		{name: "in order", want: []string{`Passed +credentials`, `Passed +read machines`, `Passed +type and image +linux, amd64, cpu 2`,
			`Passed +create a machine in us-east-1a, us-east-1b`}},
		{name: "key pair", machine: func(m *infrav1.AWSMachine) { m.KeyName = ec2stub.Nobody }, failed: true,
			want: []string{`Failed +create a machine in .*keyName: name a key pair of this region`, `→ Create in the cloud`}},
		{name: "subnets", machine: func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0dead"}} }, failed: true,
			want: []string{`Passed +type and image`, `Failed +failure domains`}},
		{name: "another account", account: func(a *infrav1.AWSAccount) { a.AccountID = "999999999999" }, failed: true,
			want: []string{`Failed +credentials +Conflict: .*spec.cloud.aws.accountID is "999999999999"`, `use those with which`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), context.Background()
			stub := ec2stub.New(t, ec2stub.Options{Keys: map[string]string{key: secret}})
			account := &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "aws"}, Spec: infrav1.DroverAccountSpec{
				CredentialsRef: infrav1.LocalReference{Name: "aws"},
				Cloud:          infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "us-east-1", Endpoint: stub.URL}},
			}}
			if tc.account != nil {
				tc.account(account.Spec.Cloud.AWS)
			}
			template := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "workers"}}
			template.Spec.Template.Spec = infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "aws"},
				Cloud: infrav1.MachineCloud{AWS: &infrav1.AWSMachine{
					InstanceType: "t3.small", Image: infrav1.AWSImage{ID: "ami-0a"},
					Subnets:        infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}},
					SecurityGroups: &infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}},
				}}}
			if tc.machine != nil {
				tc.machine(template.Spec.Template.Spec.Cloud.AWS)
			}
			credentials := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "aws", Labels: map[string]string{infrav1.CredentialsLabel: "aws"}},
				Data:       map[string][]byte{"aws_access_key_id": []byte(key), "aws_secret_access_key": []byte(secret)},
			}
			scheme, err := options.NewScheme()
			g.Expect(err).NotTo(HaveOccurred())
			clouds := options.Clouds{CallTimeout: fleet.DefaultCall, Allow: []string{"127.0.0.0/8", "::1/128"}}
			dialer, err := clouds.Dialer()
			g.Expect(err).NotTo(HaveOccurred())
			k := newChecker(fake.NewClientBuilder().WithScheme(scheme).WithObjects(account, template, credentials).Build(), dialer, clouds, "blue")
			g.Expect(k.run(ctx, checkOptions{template: "workers"})).To(Succeed())
			var out bytes.Buffer
			err = k.print(&out, asText)
			for _, want := range tc.want {
				g.Expect(out.String()).To(MatchRegexp(want))
			}
			g.Expect(err != nil).To(Equal(tc.failed), out.String())
			g.Expect(out.String()).To(ContainSubstring("no --cluster is given"))
			g.Expect(out.String()).NotTo(ContainSubstring(secret))
			g.Expect(stub.Left(cloud.TagMachine, "blue/drover-check")).To(BeEmpty())
		})
	}
}
