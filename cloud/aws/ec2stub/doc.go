// SPDX-License-Identifier: Apache-2.0

// Package ec2stub is a stand-in for Amazon EC2, and for the little of STS, Systems Manager and SQS
// that the AWS driver needs. It speaks their protocols over HTTP to the unmodified SDK, checks
// signatures, and does on demand what the real ones do on bad days: throttle, refuse, run out of
// capacity, lag, fail after the effect. It knows no more of EC2 than the driver uses. Only tests
// import it; contract_test.go in package aws holds it to the same answers as moto's.
package ec2stub
