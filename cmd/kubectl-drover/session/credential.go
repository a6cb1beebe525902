// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/internal/protocol"
)

// serviceAccountPrefix is the prefix of a ServiceAccount's user name. The ServiceAccount's namespace and name follow
// the prefix.
const serviceAccountPrefix = "system:serviceaccount:"

// accountTokenSeconds is the lifetime of a ServiceAccount's token. API servers do not issue tokens with a shorter
// lifetime.
const accountTokenSeconds = 600

// NewCredential returns the command "credential".
func NewCredential(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	var account bool
	var s signing
	c := &cobra.Command{
		Use: "credential", Short: "Print a token for one cluster, for tools that discover clusters with ClusterProfiles",
		Long: `Print a token for one cluster as an ExecCredential (client.authentication.k8s.io/v1), for
tools that discover clusters with ClusterProfiles: Argo CD, Kueue, Headlamp, multicluster-runtime.
Configure the tool to run this command, with provideClusterInfo, for the access provider "drover".

By default, the token belongs to the user who is signed in. With --service-account, it belongs to
the ServiceAccount that the tool runs as, and expires after 10 minutes. The ServiceAccount needs the
right to create serviceaccounts/token for itself. In both cases the token is only valid for that
cluster.`,
		Example: `  kubectl drover credential --service-account`,
		Args:    cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			asked := caller(os.Getenv(execInfo), os.Stdin)
			if asked.Cluster == nil {
				return fmt.Errorf("%s has no cluster: this command is for programs that run it as an exec plugin with "+
					"provideClusterInfo: true", execInfo)
			}
			if err := asked.trustworthy(); err != nil {
				return err
			}
			if account {
				return o.accountToken(c, asked.Cluster.Server)
			}
			return o.userToken(c, s, asked.Cluster.Server)
		},
	}
	c.Flags().BoolVar(&account, "service-account", false, "Print a token of the ServiceAccount of this pod or of the "+
		"kubeconfig's context")
	s.bind(c)
	return c
}

// trustworthy returns an error for a cluster that could pass the token to another party. The author of a ClusterProfile
// chooses the cluster's address, the token's audience, and the connection settings. trustworthy rejects proxies and TLS
// server names, because they would allow another server to impersonate the cluster. The hub never writes a
// ClusterProfile with such settings.
func (c call) trustworthy() error {
	var config struct {
		Audience string `json:"audience"`
	}
	server := c.Cluster.Server
	_ = json.Unmarshal(c.Cluster.Config.Raw, &config) // if no audience is set, the address is the audience
	switch {
	case config.Audience != "" && config.Audience != server:
		return fmt.Errorf("the ClusterProfile has the address %s and the audience %s: they must be the same",
			cli.Plain(server), cli.Plain(config.Audience))
	case c.Cluster.InsecureSkipTLSVerify:
		return fmt.Errorf("the ClusterProfile has %s with insecure-skip-tls-verify: tokens are only sent to verified servers",
			cli.Plain(server))
	case c.Cluster.ProxyURL != "":
		return fmt.Errorf("the ClusterProfile has %s with a proxy-url: tokens are not sent through the proxy of a "+
			"ClusterProfile; set HTTPS_PROXY instead", cli.Plain(server))
	case c.Cluster.TLSServerName != "":
		return fmt.Errorf("the ClusterProfile has %s with the tls-server-name %s: tokens are not sent to a server of "+
			"another name", cli.Plain(server), cli.Plain(c.Cluster.TLSServerName))
	case !isMemberServer(server):
		return fmt.Errorf("the ClusterProfile has the address %s, which is not the address of a cluster at a hub, "+
			"https://<hub>%s<namespace>/<name>", cli.Plain(server), protocol.PathClusters)
	}
	return nil
}

// isMemberServer reports whether an address is the address of a single Cluster on a hub. A token for the hub itself
// would be valid for all of the hub's members.
func isMemberServer(server string) bool {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil || at.RawQuery != "" || at.ForceQuery || at.Fragment != "" || at.RawPath != "" {
		return false
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(at.Path, "/"), protocol.PathClusters), "/")
	return strings.HasPrefix(at.Path, protocol.PathClusters) && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}

// userToken prints a token for a user who is signed in to the hub that the server belongs to.
func (o *options) userToken(c *cobra.Command, s signing, server string) error {
	if o.HubName == "" {
		store, err := sessions()
		if err != nil {
			return err
		}
		found, err := store.List()
		if err != nil {
			return fmt.Errorf("read your sessions: %w", err)
		}
		if o.HubName, err = chooseHub(found, server); err != nil {
			return err
		}
	} else if issuer, err := login.ParseURL(o.HubName); err != nil {
		return err
	} else {
		o.HubName = issuer
	}
	cluster, found := strings.CutPrefix(strings.TrimRight(server, "/"), o.HubName+"/k8s/clusters/")
	if !found {
		return fmt.Errorf("the cluster's address %s is not at the hub %s: your tokens are not sent there", cli.Plain(server),
			cli.Plain(o.HubName))
	}
	o.cluster = cluster // a ClusterProfile with a wrong CA or proxy can obtain a token only for this cluster
	return o.getToken(c, s)
}

// accountToken prints a token for the ServiceAccount that the kubeconfig uses.
func (o *options) accountToken(c *cobra.Command, audience string) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	config, err := o.Kubeconfig().ClientConfig()
	if err != nil {
		return fmt.Errorf("find the hub: %w", err)
	}
	o.Patient(config)
	authentication, noAuthentication := authenticationclient.NewForConfig(config)
	core, noCore := coreclient.NewForConfig(config)
	if err := errors.Join(noAuthentication, noCore); err != nil {
		return fmt.Errorf("create client for the hub: %w", err)
	}
	me, err := authentication.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the hub for the ServiceAccount: %w", err)
	}
	user := me.Status.UserInfo.Username
	namespace, name, found := strings.Cut(strings.TrimPrefix(user, serviceAccountPrefix), ":")
	if !found || !strings.HasPrefix(user, serviceAccountPrefix) {
		return fmt.Errorf("%s is not a ServiceAccount: run this in a pod, or omit --service-account", cli.Plain(user))
	}
	seconds := int64(accountTokenSeconds)
	made, err := core.ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a token of ServiceAccount %s/%s: %w; it needs the right to create serviceaccounts/token "+
			"for itself", namespace, name, err)
	}
	if made.Status.Token == "" {
		return errors.New("the hub returned an empty token")
	}
	return printCredential(c, made.Status.Token, made.Status.ExpirationTimestamp)
}
