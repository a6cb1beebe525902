// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// Limits on the connections to GitHub. A login sends requests to three addresses in sequence.
const (
	answerTimeout  = 10 * time.Second // for one request, including the body
	maxConnections = 16
	publicHost     = "github.com"
	cloudSuffix    = ".ghe.com"
)

// loginForm matches the login names of users and organizations. They consist of letters, digits and hyphens. The names
// of managed users also contain an underscore before a short code. teamForm matches the slugs that GitHub derives from
// team names.
var (
	loginForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,99}$`)
	teamForm  = regexp.MustCompile(`^[a-z0-9_][a-z0-9._-]{0,254}$`)
)

// Config is the configuration of the connector for one GitHub instance.
type Config struct {
	// URL is the address where users sign in. It is empty for https://github.com. Otherwise, it is the URL of a GitHub
	// Enterprise Server.
	URL string
	// ClientID and ClientSecret are the credentials of the OAuth app.
	ClientID, ClientSecret string
	// Roots is used to verify GitHub's certificate. If Roots is nil, the system's roots are used.
	Roots *x509.CertPool
	// Organizations lists the allowed organizations. A user must be an active member of at least one of them. Only
	// these organizations provide groups.
	Organizations []string
	// AnyUser allows all users to sign in, even if they belong to no organization. It must be set if Organizations is
	// empty. On github.com, any person can have an account.
	AnyUser bool
	// Teams lists the allowed teams, in the format organization/team. A user must be in at least one of them. If the
	// list is empty, membership in an organization is sufficient.
	Teams []string
}

// New returns the connector for a GitHub instance. It sends no requests.
func New(c Config) (*Connector, error) {
	base, api, err := addresses(c.URL)
	if err != nil {
		return nil, err
	}
	if c.ClientID == "" || c.ClientSecret == "" {
		return nil, errors.New("the client ID or the client secret of the OAuth app is empty")
	}
	if strings.ContainsFunc(c.ClientID+c.ClientSecret, unicode.IsSpace) {
		return nil, errors.New("the client ID or the client secret of the OAuth app contains a space or a line break: " +
			"store it without that")
	}
	orgs, err := lowered(c.Organizations, "organization", loginForm.MatchString)
	if err != nil {
		return nil, err
	}
	teams, err := lowered(c.Teams, "team", func(s string) bool {
		org, team, ok := strings.Cut(s, "/")
		return ok && loginForm.MatchString(org) && teamForm.MatchString(team)
	})
	if err != nil {
		return nil, err
	}
	if err := consistent(orgs, teams, c.AnyUser); err != nil {
		return nil, err
	}
	client := connector.Client(c.Roots, answerTimeout, maxConnections)
	client.Transport = bounded{client.Transport}
	return &Connector{
		api: api, host: base, orgs: orgs, teams: teams, client: client, now: time.Now,
		app: oauth2.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, Scopes: []string{scope},
			Endpoint: oauth2.Endpoint{
				AuthURL: base + "/login/oauth/authorize", TokenURL: base + "/login/oauth/access_token", AuthStyle: oauth2.AuthStyleInParams,
			}},
	}, nil
}

// addresses returns the base addresses of GitHub's web pages and its API. github.com and tenants of ghe.com have a
// separate host for the API. A GitHub Enterprise Server serves its API under a path.
func addresses(configured string) (base, api string, err error) {
	if configured == "" {
		configured = "https://" + publicHost
	}
	u, err := url.Parse(configured)
	if err != nil {
		return "", "", errors.New("the URL of GitHub is malformed")
	}
	if u.Scheme != "https" || u.Host == "" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" {
		return "", "", fmt.Errorf("the URL of GitHub must be https://<host> and nothing else, such as https://%s or "+
			"https://github.example.com", publicHost)
	}
	host := strings.ToLower(u.Host)
	base = "https://" + host
	if host == publicHost || strings.HasSuffix(host, cloudSuffix) {
		return base, "https://api." + host, nil
	}
	if host == "api."+publicHost || host == "www."+publicHost {
		return "", "", fmt.Errorf("the URL of GitHub is https://%s, not the URL of its API or its website", publicHost)
	}
	return base, base + "/api/v3", nil
}

// lowered converts names to lower case and sorts them. GitHub ignores case when it compares names.
func lowered(names []string, what string, valid func(string) bool) ([]string, error) {
	low := make([]string, 0, len(names))
	for _, name := range names {
		name = strings.ToLower(name)
		if !valid(name) {
			return nil, fmt.Errorf("%q is not a name of a GitHub %s", name, what)
		}
		low = append(low, name)
	}
	slices.Sort(low)
	return slices.Compact(low), nil
}

func consistent(orgs, teams []string, anyUser bool) error {
	switch {
	case len(orgs) == 0 && !anyUser:
		return errors.New("no organization is given: name the organizations whose members may sign in, or set anyUser")
	case len(orgs) > 0 && anyUser:
		return errors.New("both organizations and anyUser are set: choose one")
	}
	for _, team := range teams {
		if org, _, _ := strings.Cut(team, "/"); len(orgs) > 0 && !slices.Contains(orgs, org) {
			return fmt.Errorf("team %s belongs to an organization whose members may not sign in", team)
		}
	}
	return nil
}
