// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrastructure "github.com/drover-dev/drover/api/infrastructure/v1"
	provision "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// written contains values for each type that has its own syntax. Each entry has one valid value and several values that
// an API server may accept for the type although Go does not.
var written = map[reflect.Type]struct {
	good string
	odd  []string
}{
	reflect.TypeFor[metav1.Time](): {`"2030-01-01T00:00:00Z"`, []string{
		`"2030-01-01t00:00:00Z"`, `"2030-01-01T00:00:00z"`, `"2030-01-01T00:00:00x5Z"`,
		`"2030-01-01T00:00:00+99:00"`, `"2030-01-01T00:00:00+00:99"`,
		`"2030-01-01T24:00:00Z"`, `"2030-01-01T00:00:60Z"`, `"2030-02-31T00:00:00Z"`, `"2030-01-01 00:00:00Z"`,
		`"2030-01-01"`, `""`,
	}},
	reflect.TypeFor[metav1.Duration](): {`"1h"`, []string{
		`"99999999999h"`, `"1h99999999999999999999m"`, `"1d"`, `"1h "`, `"+1h"`, `"-1h"`, `"1"`, `"1hh"`, `""`, `3600`,
	}},
	reflect.TypeFor[resource.Quantity](): {`"64Mi"`, []string{
		`"1e1.5"`, `"1e99999999999"`, `"1E"`, `".5"`, `"1."`, `"1ki"`, `"1 Gi"`, `""`, `1.5`,
		`"99999999999999999999999999999999"`, `"0.00000000000000000000000001"`,
	}},
	reflect.TypeFor[intstr.IntOrString](): {`1`, []string{`5000000000`, `-1`, `1.5`, `"5000000000"`, `"%"`, `true`}},
}

const (
	plan = "{version: v1, upgrade: {image: a}, "
	// baseline lacks its closing bracket, like plan.
	baseline = "{clusterName: a, roleTemplateName: a, from: [{kind: Secret, name: a}], "
	memory   = "[{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: %s}}}]}}"
)

// whole contains specs that are valid if %s is replaced by the value of the field in the key.
var whole = map[string]string{
	"AuthProvider.spec.jwt.maxTokenLifetime": `{jwt: {issuer: {url: "https://a.example.com", audiences: [drover]},
		claimMappings: {username: {claim: sub}}, maxTokenLifetime: %s}}`,
	"ClusterRoleTemplateBinding.spec.expiresAt": "{clusterName: a, roleTemplateName: a, subject: {kind: User, name: a}, expiresAt: %s}",
	"ProjectRoleTemplateBinding.spec.expiresAt": "{projectName: a, roleTemplateName: a, subject: {kind: User, name: a}, expiresAt: %s}",

	"Host.spec.tokenTTL":                      "{tokenTTL: %s}",
	"Cluster.spec.registration.tokenTTL":      "{registration: {tokenTTL: %s}}",
	"Cluster.spec.authorizedEndpoint.offline": `{authorizedEndpoint: {server: "https://a.example.com", offline: %s}}`,
	"Cluster.spec.agent.resources.limits":     "{agent: {resources: {limits: {memory: %s}}}}",
	"Cluster.spec.agent.resources.requests":   "{agent: {resources: {requests: {memory: %s}}}}",

	"Project.spec.resourceQuota":                 "{clusterName: a, resourceQuota: {memory: %s}, namespaceDefaultResourceQuota: {memory: 0}}",
	"Project.spec.namespaceDefaultResourceQuota": "{clusterName: a, namespaceDefaultResourceQuota: {pods: %s}}",
	"Project.spec.containerDefaults.requests":    "{clusterName: a, containerDefaults: {requests: {memory: %s}}}",
	"Project.spec.containerDefaults.limits":      "{clusterName: a, containerDefaults: {limits: {memory: %s}}}",

	"Baseline.spec.healthTimeout":      baseline + "healthTimeout: %s}",
	"Baseline.spec.rollout.waves.soak": baseline + "rollout: {waves: [{name: a, soak: %s}]}}",

	"Plan.spec.concurrency":                                     plan + "concurrency: %s}",
	"Plan.spec.drain.timeout":                                   plan + "drain: {timeout: %s}}",
	"Plan.spec.postCompleteDelay":                               plan + "postCompleteDelay: %s}",
	"Plan.spec.retries.backoff":                                 plan + "retries: {backoff: %s}}",
	"Plan.spec.rollout.soak":                                    plan + "clusterName: a, rollout: {soak: %s}}",
	"Plan.spec.rollout.waves.soak":                              plan + "clusterSelector: {}, rollout: {waves: [{name: a, clusterSelector: {}, soak: %s}]}}",
	"Plan.spec.prepare.envs.valueFrom.resourceFieldRef.divisor": plan + "prepare: {image: a, envs: " + memory,
	"Plan.spec.upgrade.envs.valueFrom.resourceFieldRef.divisor": "{version: v1, upgrade: {image: a, envs: " + memory,
}

// CVE-2022-39272: the manager reads all objects of a kind in one list, so one object with a value that Go cannot decode
// would hide all other objects.
func TestManagerDecodesEveryValueThatTheAPIServerAccepts(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, infrastructure.AddToScheme, provision.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for field, leaf := range leaves(scheme) {
		kind, _, _ := strings.Cut(field, ".")
		t.Run(field, func(t *testing.T) {
			spec, ok := whole[field]
			if !ok {
				t.Fatalf("no spec for %s: add a good one to this test", field)
			}
			create := func(value string) (map[string]any, error) {
				o := object(t, namespace, kind, fmt.Sprintf(spec, value))
				if kind == "AuthProvider" {
					o.SetNamespace("")
				}
				err := env.Client.Create(t.Context(), o, client.DryRunAll)
				return o.Object, err
			}
			if _, err := create(written[leaf].good); err != nil {
				t.Fatalf("%s is refused, want it taken: %v", written[leaf].good, err)
			}
			for _, value := range written[leaf].odd {
				taken, err := create(value)
				if err != nil {
					continue
				}
				raw, err := json.Marshal(taken)
				if err != nil {
					t.Fatal(err)
				}
				typed, err := scheme.New(v1.GroupVersion.WithKind(kind))
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(raw, typed); err != nil {
					t.Errorf("the API server takes %s, which the manager cannot read, want it refused: %v", value, err)
				}
			}
		})
	}
}

// Some strings have a syntax but no type of their own. The manager must be able to parse every value that the API
// server has accepted.
func TestManagerParsesEveryTextThatTheAPIServerAccepts(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	asURL := func(text string) error { _, err := url.Parse(text); return err }
	asAddress := func(text string) error { _, err := netip.ParseAddr(text); return err }
	for field, tt := range map[string]struct {
		spec       string
		parse      func(string) error
		taken, odd []string
	}{
		"Cluster.spec.authorizedEndpoint.server": {"{authorizedEndpoint: {server: %q}}", asURL,
			[]string{
				"https://a.example.com", "https://10.0.0.1:6443", "https://[fd00::5]:6443", "https://[::1]",
				"https://[1:2:3:4:5:6:7:8]", "https://[1::]",
			},
			[]string{"https://[a]", "https://[::1", "https://[1:2:3:4:5:6::1:2:3:4]", "https://[1::2::3]", "https://[:]", "https://[]", "https://[fe80::1%25eth0]",
				"https://a:b", "https://%zz", "https://a b", "https://", "https://[12345::]"}},
		"Host.spec.internalAddress": {"{internalAddress: %q}", asAddress,
			[]string{"10.0.0.5", "fd00::5", "FD00:1:2:3:4:5:6:7", "1::"},
			[]string{"1:2:3:4:5:6:7::1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8::", "10.0.0.05", "10.0.0", "1::2::3", "fd00::5%eth0", ":", "a"}},
	} {
		t.Run(field, func(t *testing.T) {
			kind, _, _ := strings.Cut(field, ".")
			create := func(value string) error {
				return env.Client.Create(t.Context(), object(t, namespace, kind, fmt.Sprintf(tt.spec, value)), client.DryRunAll)
			}
			for _, value := range tt.taken {
				if err := errors.Join(create(value), tt.parse(value)); err != nil {
					t.Errorf("%s is refused, want it taken: %v", value, err)
				}
			}
			for _, value := range tt.odd {
				if err := tt.parse(value); create(value) == nil && err != nil {
					t.Errorf("the API server takes %s, which the manager cannot parse, want it refused: %v", value, err)
				}
			}
		})
	}
}

// leaves returns the fields of all specs whose type has its own syntax.
func leaves(scheme *runtime.Scheme) map[string]reflect.Type {
	found := map[string]reflect.Type{}
	for kind, typ := range scheme.AllKnownTypes() {
		if spec, ok := typ.FieldByName("Spec"); ok {
			walk(kind.Kind+".spec", spec.Type, found)
		}
	}
	return found
}

func walk(path string, typ reflect.Type, found map[string]reflect.Type) {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, typ.Kind()) {
		typ = typ.Elem()
	}
	if _, ok := written[typ]; ok {
		found[path] = typ
		return
	}
	if typ.Kind() != reflect.Struct {
		return
	}
	for _, f := range reflect.VisibleFields(typ) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			walk(path+"."+name, f.Type, found)
		}
	}
}
