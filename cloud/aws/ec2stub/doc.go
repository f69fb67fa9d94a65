// SPDX-License-Identifier: Apache-2.0

// Package ec2stub is a stub of Amazon EC2, and of the parts of STS, Systems Manager, SQS and
// Elastic Load Balancing that the AWS driver uses. It speaks their protocols over HTTP to the
// unmodified SDK, checks signatures, and on demand does what the real services do on bad days:
// throttle, refuse, run out of capacity, lag, fail after the effect. It implements only what the
// driver uses. Only tests import it. contract_test.go in package aws checks that it answers as
// moto does.
package ec2stub
