// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"unicode/utf16"

	goldap "github.com/go-ldap/ldap/v3"
)

// Domain is the base of Samba's domain, ad.test. Users and groups are below cn=Users.
const Domain = "DC=ad,DC=test"

const smbConf = `[global]
	workgroup = AD
	realm = AD.TEST
	netbios name = DC1
	server role = active directory domain controller
	server services = ldap
	interfaces = %[2]s/8
	bind interfaces only = yes
	disable netbios = yes
	private dir = %[1]s/private
	state directory = %[1]s/state
	cache directory = %[1]s/cache
	lock directory = %[1]s
	pid directory = %[1]s
	binddns dir = %[1]s/bind-dns
	ncalrpc dir = %[1]s/ncalrpc
	winbindd socket directory = %[1]s/winbindd
	ntp signd socket directory = %[1]s/ntp
	ldap server require strong auth = yes
	tls certfile = %[1]s/cert.pem
	tls keyfile = %[1]s/key.pem
	tls cafile = %[1]s/ca.pem
	log file = %[1]s/log
	panic action = /bin/false
`

// StartSamba creates a domain and starts its controller. The controller has its own loopback address, because its ports
// are fixed.
func StartSamba(ctx context.Context) (*Server, error) {
	program, err := find("samba")
	if err != nil {
		return nil, err
	}
	tool, err := find("samba-tool")
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: samba listens on the ports 389 and 636 and needs root", ErrMissing)
	}
	if _, err := os.Stat("/usr/share/samba/setup/provision.ldif"); err != nil {
		return nil, fmt.Errorf("%w: what samba makes a domain of (samba-ad-provision)", ErrMissing)
	}
	return inFolder(func(folder string) (*Server, error) { return startSamba(ctx, program, tool, folder) })
}

func startSamba(ctx context.Context, program, tool, folder string) (*Server, error) {
	address := net.IPv4(127, 0, 0, 0)
	_, _ = rand.Read(address[13:15]) // never fails
	address[15] = 2
	const password = "Administrator.1"
	provision := exec.CommandContext(ctx, tool, "domain", "provision", "--realm=AD.TEST", "--domain=AD", "--server-role=dc", "--host-name=dc1",
		"--host-ip="+address.String(), "--dns-backend=NONE", "--adminpass="+password, "--targetdir="+folder)
	if output, err := provision.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a domain: %w: %s", err, output)
	}
	ca, err := issue(folder, address)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(folder, "smb.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, smbConf, folder, address), 0o600); err != nil {
		return nil, fmt.Errorf("configure samba: %w", err)
	}
	s := &Server{
		LDAPS: "ldaps://" + address.String(), LDAP: "ldap://" + address.String(), CA: ca,
		BindDN: "drover@ad.test", BindPassword: "service secret", admin: "administrator@ad.test", adminPassword: password,
	}
	if err := s.start(program, "-F", "-M", "single", "-s", conf, "--no-process-group", "--debug-stdout", "-d", "1"); err != nil {
		return nil, err
	}
	if err := s.prepareDomain(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// prepareDomain lets the domain accept simple passwords and lock an account after three wrong ones, and adds the
// service account.
func (s *Server) prepareDomain() error {
	conn, err := s.Admin()
	if err != nil {
		return err
	}
	defer conn.Close()
	policy := goldap.NewModifyRequest(Domain, nil)
	for name, value := range map[string]string{"pwdProperties": "0", "minPwdAge": "0", "lockoutThreshold": "3"} {
		policy.Replace(name, []string{value})
	}
	if err := conn.Modify(policy); err != nil {
		return fmt.Errorf("set the domain's policy: %w", err)
	}
	account := goldap.NewAddRequest("CN=drover,CN=Users,"+Domain, nil)
	for name, value := range map[string]string{
		"objectClass": "user", "sAMAccountName": "drover", "userPrincipalName": s.BindDN, "userAccountControl": "512", "unicodePwd": UnicodePassword(s.BindPassword),
	} {
		account.Attribute(name, []string{value})
	}
	if err := conn.Add(account); err != nil {
		return fmt.Errorf("add the service account: %w", err)
	}
	return nil
}

// UnicodePassword encodes a password for Active Directory's attribute unicodePwd.
func UnicodePassword(password string) string {
	var raw []byte
	for _, unit := range utf16.Encode([]rune(`"` + password + `"`)) {
		raw = append(raw, byte(unit), byte(unit>>8))
	}
	return string(raw)
}
