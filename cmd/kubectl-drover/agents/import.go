// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/registration"
)

const (
	// manifestManager is the field manager of the agent's objects in the member. It is kubectl's own field manager, so
	// that "import" and the kubectl command that it prints can be run in any order.
	manifestManager = "kubectl"
	// importLimit is the default value of --timeout. It leaves enough time to pull an image.
	importLimit = 5 * time.Minute
)

// importing holds the flags of "import".
type importing struct {
	labels    string
	profile   string
	toContext string
	wait      bool
	dryRun    bool
	timeout   time.Duration
}

// NewImport returns the command "import".
func NewImport(o *cli.Options) *cobra.Command {
	var i importing
	c := &cobra.Command{
		Use: "import NAME", Short: "Create a Cluster, and join a cluster to the hub",
		Long: `Create a Cluster on the hub, and join a cluster to the hub as this Cluster. You need the
rights to create Clusters and to get Secrets in one workspace.

With --to-context, the command applies the agent in the cluster of that kubeconfig context and waits
until the Cluster is ready. You must be an administrator of that cluster. Until the agent connects,
the command prints why it does not: the state of its pod, and the agent's last error. Without
--to-context, the command prints the command to run in the cluster.

The printed command and the Secret NAME-registration let a cluster join as this Cluster. Protect
them like a password. They work once, within one day.

You can run the command again, for example after an interruption. It keeps an existing Cluster and
its agent.

Exit codes: 0 the Cluster exists and, if the command waits for it, is ready; 2 an error occurred, or
the Cluster was not ready in time.`,
		Example: `  kubectl drover import prod-eu --labels env=prod --to-context prod-eu-admin
  kubectl drover import prod-eu -w team-a
  kubectl drover import prod-eu --wait`,
		Args: cli.Arguments(1, "a name for the Cluster"),
		RunE: func(c *cobra.Command, args []string) error { return importCluster(c, o, args[0], i) },
	}
	flags := c.Flags()
	o.BindWorkspace(c)
	flags.StringVar(&i.labels, "labels", "", "Labels for the Cluster, for example env=prod,region=eu")
	flags.StringVar(&i.profile, "profile", "", "Full or ReadOnly: what the agent may do in the cluster (default: Full)")
	flags.StringVar(&i.toContext, "to-context", "", "The kubeconfig context of the cluster to import")
	flags.BoolVar(&i.wait, "wait", false, "Wait until the Cluster is ready, even without --to-context")
	flags.BoolVar(&i.dryRun, "dry-run", false, "Let the hub validate the Cluster, but change nothing")
	flags.DurationVar(&i.timeout, "timeout", importLimit, "How long to wait until the Cluster is ready")
	cli.Complete(c, "profile", cli.Offer(string(v1.ProfileFull), string(v1.ProfileReadOnly)))
	cli.Complete(c, "to-context", o.CompleteContexts)
	return c
}

type importer struct {
	importing
	hub  *cli.Hub
	key  types.NamespacedName
	out  io.Writer // receives the command to run in the cluster
	says io.Writer // receives progress messages
	last string
	// joined is the UID of the cluster that has joined, according to the Cluster's status, or "" if no cluster has
	// joined.
	joined string
	// away is true while the hub is unavailable.
	away bool
	// inMember determines why the agent does not connect. It is nil if this command does not install the agent. looked
	// is the time of the last inspection.
	inMember *diagnosis
	looked   time.Time
	why      string
}

func importCluster(c *cobra.Command, o *cli.Options, name string, how importing) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("a Cluster cannot have the name %s: %s", cli.Visible(name), strings.Join(problems, "; "))
	}
	set, err := labels.ConvertSelectorToLabelsMap(how.labels)
	if err != nil {
		return fmt.Errorf("read --labels: %w", err)
	}
	hub, err := o.Hub()
	if err != nil {
		return err
	}
	var member *rest.Config
	if how.toContext != "" { // fail before anything is changed
		if member, err = memberToBe(o, how.toContext); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(c.Context(), how.timeout)
	defer cancel()
	i := &importer{importing: how, hub: hub, key: types.NamespacedName{Namespace: hub.Workspace, Name: name}, out: c.OutOrStdout(), says: c.ErrOrStderr()}
	err = i.run(ctx, set, member)
	if err != nil && c.Context().Err() != nil {
		i.say("interrupted: changes made so far stay; run the same command again to continue")
	}
	return err
}

func (i *importer) run(ctx context.Context, set labels.Set, member *rest.Config) error {
	if err := i.create(ctx, set); err != nil || i.dryRun {
		return err
	}
	secret, err := i.registration(ctx)
	if err != nil || secret == nil {
		return err
	}
	switch {
	case member != nil:
		if err := i.apply(ctx, member, secret.Data[registration.KeyManifest]); err != nil {
			return err
		}
		if i.inMember, err = newDiagnosis(member); err != nil {
			return fmt.Errorf("connect to the cluster of context %s: %w", i.toContext, err)
		}
	default:
		i.say("run this as an administrator of the cluster to import as %s; it works once, keep it secret:", i.key)
		fmt.Fprintf(i.out, "%s\n", secret.Data[registration.KeyCommand])
		if !i.wait {
			i.say("then: kubectl --namespace %s get cluster %s", i.key.Namespace, i.key.Name)
			return nil
		}
	}
	return i.ready(ctx)
}

// memberToBe returns the client configuration for a context. It rejects a context that connects through a hub, because
// an agent in such a cluster would belong to another Cluster.
func memberToBe(o *cli.Options, name string) (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.Loading, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read context %s of the kubeconfig: %w", name, err)
	}
	if _, through := cli.HubBase(config.Host); through {
		return nil, fmt.Errorf("context %s leads through a hub to a cluster that is already a member: use a context that "+
			"connects directly to the cluster", name)
	}
	o.Patient(config)
	return config, nil
}

// create creates the Cluster unless it already exists.
func (i *importer) create(ctx context.Context, set labels.Set) error {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: i.key.Namespace, Name: i.key.Name, Labels: set}}
	cluster.Spec.Agent.Profile = v1.AgentProfile(i.profile)
	options := []client.CreateOption{client.FieldOwner(cli.FieldManager)}
	if i.dryRun {
		options = append(options, client.DryRunAll)
	}
	err := i.hub.Create(ctx, cluster, options...)
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("create Cluster %s at %s: Drover is not installed there: select the hub with --kubeconfig or "+
			"--context", i.key, i.hub.Config.Host)
	case apierrors.IsAlreadyExists(err):
		return i.keep(ctx, set)
	case err != nil:
		return fmt.Errorf("create Cluster %s: %w", i.key, err)
	case i.dryRun:
		i.say("Cluster %s would be created (dry run)", i.key)
	default:
		i.say("Cluster %s created", i.key)
	}
	return nil
}

// keep returns nil if an existing Cluster matches the flags.
func (i *importer) keep(ctx context.Context, set labels.Set) error {
	found := &v1.Cluster{}
	if err := i.hub.Get(ctx, i.key, found); err != nil {
		return fmt.Errorf("read Cluster %s: %w", i.key, err)
	}
	if !labels.SelectorFromSet(set).Matches(labels.Set(found.Labels)) {
		return fmt.Errorf("cluster %s exists with other labels: change them with \"kubectl -n %s label cluster %s %s\", or omit --labels",
			i.key, i.key.Namespace, i.key.Name, strings.ReplaceAll(i.labels, ",", " "))
	}
	if i.profile != "" && string(found.Spec.Agent.Profile) != i.profile {
		return fmt.Errorf("cluster %s exists with the profile %s: change its spec.agent.profile, or omit --profile", i.key,
			cli.Plain(string(found.Spec.Agent.Profile)))
	}
	i.say("Cluster %s already exists", i.key)
	return nil
}

// registration waits for the registration Secret. It returns nil if the Cluster already has an agent and is ready.
func (i *importer) registration(ctx context.Context) (*corev1.Secret, error) {
	secret, cluster := &corev1.Secret{}, &v1.Cluster{}
	err := i.poll(ctx, func(ctx context.Context) (bool, error) {
		if err := i.look(ctx, cluster); err != nil || i.away {
			return false, err
		}
		if meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionReady) {
			return true, nil
		}
		err := i.hub.Get(ctx, registration.RegistrationSecret(i.key), secret)
		if err == nil && cluster.UID != "" {
			switch err := cli.MadeByDrover(secret, cluster, v1.SecretKindRegistration); {
			// the Secret belongs to a deleted Cluster of the same name until it is garbage collected
			case err != nil && registration.Ours(secret, cluster.Name, v1.SecretKindRegistration):
				i.tell(err.Error())
				return false, nil
			case err != nil:
				return false, err
			}
			if len(secret.Data[registration.KeyManifest]) > 0 && len(secret.Data[registration.KeyCommand]) > 0 {
				return true, nil
			}
		}
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("read registration Secret %s%s: %w", i.key, v1.RegistrationSecretSuffix, err)
		}
		i.show(cluster)
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	if meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionReady) {
		i.say("Cluster %s has an agent and is ready", i.key)
		return nil, nil
	}
	i.joined = cluster.Status.ClusterUID
	return secret, nil
}

// apply applies the agent's manifest in the member.
func (i *importer) apply(ctx context.Context, config *rest.Config, manifest []byte) error {
	member, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("connect to the cluster of context %s at %s: %w", i.toContext, config.Host, err)
	}
	if err := i.sameCluster(ctx, member); err != nil {
		return err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for applied := 0; ; applied++ {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			i.say("applied the agent in the cluster of context %s: %d objects", i.toContext, applied)
			return nil
		} else if err != nil {
			return fmt.Errorf("read the agent's manifest: %w", err)
		}
		if err := member.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manifestManager), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s in the cluster of context %s: %w", object.GetKind(),
				client.ObjectKeyFromObject(object), i.toContext, err)
		}
	}
}

// sameCluster returns an error if a different cluster has already joined as this Cluster. The hub would refuse the new
// cluster in that case.
func (i *importer) sameCluster(ctx context.Context, member client.Client) error {
	system := &corev1.Namespace{}
	err := member.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, system)
	if err != nil {
		return fmt.Errorf("read the namespace %s in the cluster of context %s: %w", metav1.NamespaceSystem, i.toContext, err)
	}
	if i.joined != "" && i.joined != string(system.UID) {
		return fmt.Errorf("cluster %s already has another cluster than the one of context %s: the joined cluster has the UID %s, this one has %s: use another name, or delete the Cluster first",
			i.key, i.toContext, cli.Plain(i.joined), system.UID)
	}
	return nil
}

// ready waits until the Cluster is ready. While it waits, it prints the reason why the Cluster is not ready whenever
// that reason changes.
func (i *importer) ready(ctx context.Context) error {
	cluster := &v1.Cluster{}
	err := i.poll(ctx, func(ctx context.Context) (bool, error) {
		if err := i.look(ctx, cluster); err != nil || i.away {
			return false, err
		}
		i.diagnose(ctx, cluster)
		i.show(cluster)
		if stalled := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionStalled); stalled != nil && stalled.Status == "True" {
			return false, fmt.Errorf("cluster %s needs your action: %s: %s", i.key, stalled.Reason, cli.Plain(stalled.Message))
		}
		return meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionReady), nil
	})
	return err
}

// poll calls look until it returns true. If this takes too long, poll returns an error with the last printed state.
func (i *importer) poll(ctx context.Context, look wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextCancel(ctx, cli.LookInterval, true, look)
	if wait.Interrupted(err) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cluster %s is not ready after %s: %s: run the same command again to continue waiting, or use a "+
			"longer --timeout", i.key, i.timeout, i.last)
	}
	return err
}

// look reads the Cluster. It tolerates a hub that is temporarily unavailable.
func (i *importer) look(ctx context.Context, cluster *v1.Cluster) error {
	err := i.hub.Get(ctx, i.key, cluster)
	i.away = err != nil
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) {
		return fmt.Errorf("read Cluster %s: %w", i.key, err)
	}
	if err != nil && ctx.Err() == nil {
		i.tell("the hub does not answer: " + cli.Plain(err.Error()))
	}
	return nil
}

// show prints what the Cluster is waiting for, if this has changed.
func (i *importer) show(cluster *v1.Cluster) {
	said := "the hub has not reconciled the Cluster yet"
	if c := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionReady); c != nil {
		said = c.Reason + ": " + cli.Plain(c.Message)
		if c.Reason == v1.ReasonAwaitingAgent && i.inMember != nil { // this command has already installed the agent
			said = c.Reason + ": the agent has not connected yet"
		}
	}
	if i.why != "" {
		said += ": " + i.why
	}
	i.tell(said)
}

// diagnoseInterval is the interval at which the member is inspected to determine why its agent does not connect.
const diagnoseInterval = 2 * time.Second

func (i *importer) diagnose(ctx context.Context, cluster *v1.Cluster) {
	if meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionReady) {
		i.why = ""
		return
	}
	if i.inMember != nil && time.Since(i.looked) >= diagnoseInterval {
		i.looked, i.why = time.Now(), i.inMember.explain(ctx)
	}
}

// tell prints a text, unless it was the last text that tell printed.
func (i *importer) tell(said string) {
	if said != i.last {
		i.last = said
		i.say("%s", said)
	}
}

func (i *importer) say(format string, args ...any) { fmt.Fprintf(i.says, format+"\n", args...) }
