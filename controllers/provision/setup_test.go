// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package provision_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	namespace = "drover-system"
	account   = "system:serviceaccount:" + namespace + ":drover-provisioner"
)

// TestEveryControllerWorksWithTheRightsOfItsRole runs all controllers of the provisioner with its account, which has
// only the generated roles, and under the policies that restrict them. The provisioner is ready once it has its rights.
func TestEveryControllerWorksWithTheRightsOfItsRole(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	env.Provision(t)
	workspace := env.Workspace(t)
	env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for _, file := range []string{"provision/service_account", "provision/role", "provision/role_binding",
		"clusterapi/role", "clusterapi/import/role", "provision/policy", "clusterapi/policy", "clusterapi/import/policy"} {
		apply(t, env, "config/"+file+".yaml")
	}
	env.AwaitRights(t, account, "", rbacv1.PolicyRule{
		APIGroups: []string{"admissionregistration.k8s.io"}, Verbs: []string{"list"},
		Resources: []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"},
	})
	probes, ended := start(t, env)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(answers(ctx, probes+"/healthz", http.StatusOK),
			answers(ctx, probes+"/readyz/caches", http.StatusInternalServerError))
	})
	for _, file := range []string{"clusterapi/role_binding", "clusterapi/import/role_binding"} {
		apply(t, env, "config/"+file+".yaml")
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(answers(ctx, probes+"/readyz", http.StatusOK),
			answers(ctx, probes+"/readyz/hooks", http.StatusOK))
	})
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "h1"}}
	env.Apply(t, host)

	machine := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "m1"}}
	cluster := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "c1"}}
	installation := &provisionv1.ClusterInstallation{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "k3s"}}
	servers := provisionv1.HostPool{
		Name: "servers", Roles: []provisionv1.HostRole{provisionv1.RoleEtcd, provisionv1.RoleControlPlane},
	}
	installation.Spec = provisionv1.ClusterInstallationSpec{
		ClusterName: "k3s", Distribution: provisionv1.DistributionK3s, Version: "v1.35.3+k3s1",
		Pools: []provisionv1.HostPool{servers},
	}
	snapshot := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "s1"}}
	snapshot.Spec.ClusterRef = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: "none"}
	for _, o := range []client.Object{machine, cluster, installation, snapshot} {
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return ready(ctx, env, installation, &installation.Status.Conditions, provisionv1.ReasonNotPermitted)
	})
	env.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "drover-provisioner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "drover-provisioner-workspace"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "drover-provisioner"}},
	})
	env.ClusterAPIObject(t, "Cluster", workspace, "imported", map[string]string{v1.LabelImport: "true"},
		map[string]any{"spec": map[string]any{}})
	for name, done := range map[string]func(context.Context) error{
		"a DroverMachine": func(ctx context.Context) error {
			return ready(ctx, env, machine, &machine.Status.Conditions, infrav1.ReasonWaitingForOwner)
		},
		"a DroverCluster": func(ctx context.Context) error {
			return ready(ctx, env, cluster, &cluster.Status.Conditions, infrav1.ReasonWaitingForOwner)
		},
		"a ClusterInstallation": func(ctx context.Context) error {
			return ready(ctx, env, installation, &installation.Status.Conditions, provisionv1.ReasonClusterMissing)
		},
		"an EtcdSnapshot": func(ctx context.Context) error {
			err := env.Client.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot)
			if err == nil && len(snapshot.Status.Conditions) == 0 {
				err = fmt.Errorf("its status is %+v, want conditions", snapshot.Status)
			}
			return err
		},
		"a cluster that is imported": func(ctx context.Context) error {
			return env.Client.Get(ctx, types.NamespacedName{Namespace: workspace, Name: "imported"}, &v1.Cluster{})
		},
		"a Host that is taken": func(ctx context.Context) error {
			own, err := client.New(impersonating(env), client.Options{Scheme: testkit.Scheme(t)})
			if err != nil {
				return err
			}
			denied := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
			err = own.Patch(ctx, host.DeepCopy(), denied)
			if err == nil {
				return errors.New("a label of a Host was changed, want Forbidden")
			}
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("want Forbidden for a change of a Host's label: %w", err)
			}
			taken := &v1.Host{}
			if err := env.Client.Get(ctx, client.ObjectKeyFromObject(host), taken); err != nil {
				return err
			}
			taken.Status.State = v1.HostAvailable
			meta.SetStatusCondition(&taken.Status.Conditions, metav1.Condition{
				Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonHostAvailable,
				ObservedGeneration: taken.Generation,
			})
			consumer := v1.HostConsumerRef{APIVersion: v1.GroupVersion.String(), Kind: "Test", Name: "t", UID: "u"}
			pool := hosts.Hub{Client: own, Live: own, Finalizer: provisionv1.FinalizerNode}
			if err := pool.Take(ctx, taken, consumer); err != nil {
				return err
			}
			first := protocol.HostInstruction{ID: "a", Command: []string{"true"}}
			_, err = pool.Give(ctx, taken, consumer, protocol.HostInstructions{Instructions: []protocol.HostInstruction{first}})
			return err
		},
		"the watch of its policies": func(context.Context) error {
			if got := testkit.Scrape(t, metrics.Registry); !strings.Contains(got, "drover_policies state=InForce 8\n") {
				return fmt.Errorf("the metrics are\n%s\nwant 8 policies in force", got)
			}
			return nil
		},
		"the Lease": func(ctx context.Context) error {
			lease := &coordinationv1.Lease{}
			return env.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "drover-provisioner"}, lease)
		},
	} {
		t.Run(name, func(t *testing.T) { testkit.Eventually(t, time.Minute, done) })
	}
	t.Run("a hub whose etcd was restored", func(t *testing.T) { testRestored(t, env, ended) })
}

// testRestored removes renewals from the manager's Lease, one at a time, until the provisioner has noticed, and ends.
func testRestored(t *testing.T, env *testkit.Env, ended <-chan error) {
	renewals := 10_000
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: hub.ManagerLease, Annotations: map[string]string{v1.AnnotationTerms: "4/a/10000"},
	}}
	env.Apply(t, lease)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		select {
		case err := <-ended:
			if !errors.Is(err, checkpoint.ErrRestored) {
				t.Errorf("the provisioner ended with %v, want %v", err, checkpoint.ErrRestored)
			}
			return nil
		default:
		}
		renewals--
		testkit.Update(t, env.Client, lease, func(l *coordinationv1.Lease) {
			l.Annotations[v1.AnnotationTerms] = fmt.Sprintf("4/a/%d", renewals)
		})
		return errors.New("the provisioner runs on")
	})
}

// answers returns an error if a URL does not respond with the given status.
func answers(ctx context.Context, url string, want int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return fmt.Errorf("%s answers %s, want %d", url, response.Status, want)
	}
	return nil
}

// start runs a provisioner with its account until the test ends. It returns the URL of its probes, and the error with
// which it ends.
func start(t *testing.T, env *testkit.Env) (string, <-chan error) {
	t.Helper()
	probes, hooks := address(t), address(t)
	cfg, err := config.Parse(fmt.Appendf(nil, "{apiVersion: config.drover.dev/v1, kind: ProvisionerConfig, "+
		"health: {listen: '%s'}, metrics: {listen: '0'}, clusterAPI: {enabled: true, import: true, "+
		"inPlaceUpdates: true, hooks: {listen: '%s', certDir: '%s'}}}", probes, hooks, certificate(t)))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	options.Logger = logr.Discard()
	mgr, err := ctrl.NewManager(impersonating(env), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := provision.Setup(mgr, cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- mgr.Start(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the provisioner ended with %v, want no error", err)
		}
	})
	return "http://" + probes, ended
}

// address returns a free address.
func address(t *testing.T) string {
	t.Helper()
	free, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// certificate returns a folder with a serving certificate for the hooks.
func certificate(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "tls.crt"), crt, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// impersonating returns the configuration of a client that acts as the provisioner's account.
func impersonating(env *testkit.Env) *rest.Config {
	kubeconfig := rest.CopyConfig(env.Config)
	kubeconfig.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:authenticated"}}
	return kubeconfig
}

// ready returns nil once an object has the Ready condition with a reason.
func ready(ctx context.Context, env *testkit.Env, o client.Object, is *[]metav1.Condition, reason string) error {
	if err := env.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	if c := meta.FindStatusCondition(*is, "Ready"); c == nil || c.Reason != reason {
		return fmt.Errorf("the condition is %+v, want reason %s", c, reason)
	}
	return nil
}

// apply applies the objects of a file.
func apply(t *testing.T, env *testkit.Env, file string) {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range bytes.Split(text, []byte("---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if o.GetKind() != "" {
			env.Apply(t, o)
		}
	}
}
