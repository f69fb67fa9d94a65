// SPDX-License-Identifier: Apache-2.0

// google-clients has Google's own clients call Compute Engine, or what stands in for it, and prints
// what they read as JSON: google-clients <input.json. It fails if an answer has a member that a
// client does not know, or a value that it can't hold. The clients are google.golang.org/api, made
// from the discovery documents, and cloud.google.com/go/compute, made from protocol buffers.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// input is what there is to read.
type input struct {
	// Address is where all of Google's names lead, with a certificate that CA signed.
	Address, CA string
	// Credentials is a service account key.
	Credentials string
	// Project has a Subnetwork in Region. Its listings are read with Filter, and its operations
	// with Preemptions.
	Project, Region, Subnetwork, Filter, Preemptions string
	// Zone has capacity for MachineType, FullZone has none. Image is one of Project, Family one of
	// ImageProject.
	Zone, FullZone, MachineType, Image, ImageProject, Family string
	// Balancer is the name of all parts of a load balancer, which BalancerFilter selects.
	Balancer, BalancerFilter string
}

// reading is what a client reads.
type reading struct {
	Instances    []machine
	Disks        []string // zone/name
	Unreachables []string
	Warnings     []string // of the listing, and of scopes, without those for empty scopes
	Preempted    []string // numbers of the instances, by the operations that Preemptions selects

	// Region, MachineType and Image are their names. Quotas is how many the region has.
	Region, MachineType, Image string
	Quotas                     int
	Permissions                []string
	Console                    int // its length in bytes

	// Begun is the operation of a create, Done the same one later, Failed that of a create without
	// capacity, Deleted that of a deletion.
	Begun, Done, Failed, Deleted progress
	Balancer                     balancer
	// The errors of an unknown instance, of a name that exists, and of a value that is not valid.
	Unknown, Exists, Invalid refusal
}

const (
	subnetUse     = "compute.subnetworks.use"
	instancesList = "compute.instances.list"
)

type machine struct {
	ID, Name, Zone, Status, Created string
	Labels                          map[string]string
	Addresses                       []string
	Spot                            bool
	Maintenance                     string
}

// balancer is what there is of a load balancer, without the names that its parts have in common.
type balancer struct {
	// Checks are the types and paths of the health checks, Rules the addresses and ports of the
	// forwarding rules that a listing has.
	Checks, Rules []string
	// Target, Service and Groups are what the parts refer to: collections, below the project.
	Target, Service, Check string
	Groups                 []string
	Endpoints              []string // address, port and health, as google.golang.org/api reads them
}

// referred returns the collection that a part's URL leads to, if the part has the name.
func (in *input) referred(url string) string {
	_, path, _ := strings.Cut(url, "/compute/v1/projects/"+in.Project+"/")
	path, ok := strings.CutSuffix(path, "/"+in.Balancer)
	if !ok {
		return "not of this load balancer: " + url
	}
	return path
}

type progress struct {
	Name, Type, Status, Request, Target, Code string
}

type refusal struct {
	Status  int
	Reason  string
	Message string
}

// refused returns the refusal in a client's error.
func refused(err error) refusal {
	var e *googleapi.Error
	if !errors.As(err, &e) {
		return refusal{Message: fmt.Sprint(err)}
	}
	r := refusal{Status: e.Code, Message: e.Message}
	if len(e.Errors) > 0 {
		r.Reason = e.Errors[0].Reason
	}
	return r
}

// create makes an instance, looks at its operation until it is done, and makes mistakes. post makes
// it of a machine type in a zone.
func (out *reading) create(in *input, post func(zone, kind, request string) (progress, error)) (err error) {
	until := func(zone string) (first, done progress, err error) {
		request := uuid.NewString()
		first, err = post(zone, in.MachineType, request)
		for done = first; err == nil && done.Status != "DONE"; {
			time.Sleep(50 * time.Millisecond)
			done, err = post(zone, in.MachineType, request)
		}
		return first, done, err
	}
	if out.Begun, out.Done, err = until(in.Zone); err != nil {
		return err
	}
	if _, out.Failed, err = until(in.FullZone); err != nil {
		return err
	}
	_, err = post(in.Zone, in.MachineType, uuid.NewString())
	out.Exists = refused(err)
	_, err = post(in.FullZone, "unknown", uuid.NewString())
	out.Invalid = refused(err)
	return nil
}

// last returns the last part of a resource's URL: its name.
func last(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// recorder keeps the bodies of successful answers.
type recorder struct {
	base   http.RoundTripper
	bodies [][]byte
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode == http.StatusOK {
		r.bodies = append(r.bodies, body)
	}
	return resp, nil
}

// take decodes the bodies since the last call.
func (r *recorder) take(strict func([]byte) error) error {
	bodies := r.bodies
	r.bodies = nil
	if len(bodies) == 0 {
		return errors.New("there was no answer")
	}
	for _, body := range bodies {
		if err := strict(body); err != nil {
			return fmt.Errorf("%w in %s", err, body)
		}
	}
	return nil
}

func main() {
	log.SetFlags(0)
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(in.CA))
	base := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, in.Address)
		},
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: base})
	key, err := google.JWTConfigFromJSON([]byte(in.Credentials), "https://www.googleapis.com/auth/cloud-platform")
	if err != nil {
		log.Fatal(err)
	}
	out := map[string]*reading{}
	for name, read := range map[string]func(context.Context, *input, *recorder, option.ClientOption) (*reading, error){
		"google.golang.org/api": readDiscovery, "cloud.google.com/go/compute": readProtobuf,
	} {
		answers := &recorder{base: &oauth2.Transport{Source: key.TokenSource(ctx), Base: base}}
		if out[name], err = read(ctx, &in, answers, option.WithHTTPClient(&http.Client{Transport: answers})); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}
