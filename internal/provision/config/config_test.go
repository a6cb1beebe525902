// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
)

const minimal = "apiVersion: config.drover.dev/v1\nkind: ProvisionerConfig\n"

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(minimal))
	if err != nil || c.Namespace != "drover-system" || c.Health.Listen != ":8081" ||
		!*c.LeaderElection.Enabled || c.ClusterAPI.Enabled {
		t.Errorf("got %+v (%v), want the defaults, without Cluster API", c, err)
	}
	for name, tc := range map[string]struct{ file, want string }{
		"a misspelt field is named": {minimal + "clusterApis: {}\n", `unknown field "clusterApis"`},
		"the manager's file is refused": {
			strings.Replace(minimal, "Provisioner", "Manager", 1),
			"want config.drover.dev/v1, ProvisionerConfig",
		},
		"an impossible leader election is reported": {
			minimal + "leaderElection: {leaseDuration: 1s}\n",
			"retryPeriod < renewDeadline < leaseDuration",
		},
		"in-place updates take Cluster API": {
			minimal + "clusterAPI: {inPlaceUpdates: true}\n",
			"clusterAPI.inPlaceUpdates: requires clusterAPI.enabled",
		},
		"a bad port for hooks is reported": {
			minimal + "clusterAPI: {hooks: {listen: nonsense}}\n",
			"clusterAPI.hooks.listen: want host:port",
		},
		"a named port for hooks is reported": {
			minimal + "clusterAPI: {hooks: {listen: ':https'}}\n",
			"clusterAPI.hooks.listen: want host:port",
		},
		"a bad port for probes is reported": {
			minimal + "health: {listen: nonsense}\n", "health.listen: want host:port",
		},
		"an invalid namespace is refused": {minimal + "namespace: a/b\n", "namespace: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse([]byte(tc.file)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got the error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

// The configurations in config/ are valid for this version.
func TestInstalledConfigurationsAreValid(t *testing.T) {
	t.Parallel()
	for folder, want := range map[string]ClusterAPI{
		"provision": {}, "clusterapi": {Enabled: true}, "clusterapi-inplace": {Enabled: true, InPlaceUpdates: true},
	} {
		got, err := Load("../../../config/" + folder + "/config.yaml")
		if err != nil {
			t.Error(err)
			continue
		}
		want.Hooks = got.ClusterAPI.Hooks
		if got.ClusterAPI != want {
			t.Errorf("config/%s got clusterAPI %+v, want %+v", folder, got.ClusterAPI, want)
		}
	}
}

// An overlay that moves the Deployment to another namespace changes no file.
func TestNamespaceIsThePodsUnlessTheFileNamesOne(t *testing.T) {
	const file = "apiVersion: config.drover.dev/v1\nkind: ProvisionerConfig\n"
	for pod, wants := range map[string][2]string{"": {"drover-system", "own"}, "team-hub": {"team-hub", "own"}} {
		t.Setenv(EnvNamespace, pod)
		for i, text := range []string{file, file + "namespace: own\n"} {
			if got, err := Parse([]byte(text)); err != nil || got.Namespace != wants[i] {
				t.Errorf("in a pod of %q, %q gives the namespace %q (%v), want %q", pod, text, got.Namespace, err, wants[i])
			}
		}
	}
	for _, folder := range []string{"provision", "clusterapi", "clusterapi-inplace"} {
		t.Setenv(EnvNamespace, "team-hub")
		if got, err := Load("../../../config/" + folder + "/config.yaml"); err != nil || got.Namespace != "team-hub" {
			t.Errorf("config/%s gives the namespace %q (%v), want the pod's", folder, got.Namespace, err)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/operations/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ours, found := strings.Cut(string(text), "## The provisioner")
	if !found {
		t.Fatal("docs/operations/configuration.md has no section for the provisioner")
	}
	for _, key := range []string{
		"namespace", "health.listen", "metrics.listen", "leaderElection", "clusterAPI.enabled", "clusterAPI.inPlaceUpdates",
		"clusterAPI.hooks.listen", "clusterAPI.hooks.certDir", "clusterAPI.import",
	} {
		if !strings.Contains(ours, "| `"+key+"`") {
			t.Errorf("docs/operations/configuration.md has no key %s of the provisioner", key)
		}
	}
}

func TestCacheDropsForeignAnnotations(t *testing.T) {
	t.Parallel()
	const last, paused = "kubectl.kubernetes.io/last-applied-configuration", "cluster.x-k8s.io/paused"
	for name, tc := range map[string]struct {
		object client.Object
		given  map[string]string
		want   []string
	}{
		"an annotation of Cluster API's by others": {&metav1.PartialObjectMetadata{}, map[string]string{last: "{}"}, nil},
		"an annotation of a Cluster":               {&v1.Cluster{}, map[string]string{last: "{}"}, nil},
		"that a machine is paused": {
			&infrav1.DroverMachine{}, map[string]string{last: "{}", paused: strings.Repeat("x", 200_000)},
			[]string{paused},
		},
		"that a restored Host is confirmed": {
			&v1.Host{}, map[string]string{last: "{}", v1.AnnotationRestored: "lease/1/a/2"},
			[]string{v1.AnnotationRestored},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.object.SetAnnotations(tc.given)
			tc.object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
			if _, err := trim(tc.object); err != nil {
				t.Fatal(err)
			}
			keys, fields := slices.Sorted(maps.Keys(tc.object.GetAnnotations())), tc.object.GetManagedFields()
			if !slices.Equal(keys, tc.want) || len(fields) > 0 {
				t.Errorf("got annotations %v and managed fields %v, want annotations %v only", keys, fields, tc.want)
			}
		})
	}
}

func TestTheCacheKeepsLittleOfAnyMetadata(t *testing.T) {
	t.Parallel()
	const most = 32 << 10
	for _, o := range []client.Object{
		&v1.Cluster{}, &v1.Host{}, &infrav1.DroverMachine{}, &infrav1.DroverCluster{}, &provisionv1.ClusterInstallation{},
		&provisionv1.EtcdSnapshot{}, &provisionv1.EtcdRestore{}, &metav1.PartialObjectMetadata{},
	} {
		crowd(o)
		for range 2 { // an informer may transform an object twice
			if _, err := trim(o); err != nil {
				t.Fatal(err)
			}
			if raw, err := json.Marshal(o); err != nil || len(raw) > most {
				t.Errorf("%T: %d bytes are kept, want %d at most (%v)", o, len(raw), most, err)
			}
		}
	}
}

// crowd adds to each kind of metadata more than is kept: labels, finalizers and owners have no limit of their own.
func crowd(o client.Object) {
	annotations, labels := map[string]string{}, map[string]string{}
	for _, key := range []string{
		"cluster.x-k8s.io/paused", v1.AnnotationRestored, provisionv1.AnnotationScheduledFor, "x",
	} {
		annotations[key] = strings.Repeat("x", 40<<10)
	}
	var finalizers []string
	var owners []metav1.OwnerReference
	for i := range 2000 {
		labels[fmt.Sprintf("%s.example.com/%d", strings.Repeat("l", 230), i)] = strings.Repeat("v", 63)
		finalizers = append(finalizers, fmt.Sprintf("%s.example.com/%d", strings.Repeat("f", 230), i))
		for _, group := range []string{v1.Group, infrav1.Group, "cluster.x-k8s.io"} {
			owners = append(owners, metav1.OwnerReference{
				APIVersion: group + "/v1", Kind: "Cluster", Name: strings.Repeat("n", 200), UID: "u",
			})
		}
	}
	o.SetAnnotations(annotations)
	o.SetLabels(labels)
	o.SetFinalizers(finalizers)
	o.SetOwnerReferences(owners)
}
