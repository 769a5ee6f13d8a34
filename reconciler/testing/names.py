"""Names, labels, ports and addresses: which spellings Kubernetes accepts, and its sentence for the
others.

Every function returns the complaints about one value; an empty list means that it is fine.
Go: `k8s.io/apimachinery/pkg/util/validation`.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing.errors import FieldError, invalid_value

if TYPE_CHECKING:
    from collections.abc import Callable

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = rf"({_QUALIFIED})?"
_CIDR: Final = re.compile(r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def dns_label(value: str) -> list[str]:
    """`IsDNS1123Label`: namespaces, containers."""
    complaints = _too_long(value, 63)
    if not re.fullmatch(_LABEL, value):
        complaints.append(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or "
            "'-', and must start "
            "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
            "for validation is "
            f"'{_LABEL}')"
        )
    return complaints


def dns_subdomain(value: str) -> list[str]:
    """`IsDNS1123Subdomain`: the names of most objects."""
    complaints = _too_long(value, 253)
    if not re.fullmatch(_SUBDOMAIN, value):
        complaints.append(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
            "characters, '-' or '.', and "
            "must start and end with an alphanumeric character (e.g. 'example.com', regex used "
            "for validation is "
            f"'{_SUBDOMAIN}')"
        )
    return complaints


def qualified_name(value: str) -> list[str]:
    """`IsQualifiedName`: keys of labels and annotations."""
    prefix, slash, name = value.rpartition("/")
    complaints: list[str] = []
    if "/" in prefix:
        complaint = f"a qualified name {_QUALIFIED_HELP} with an optional DNS subdomain prefix"
        return [f"{complaint} and '/' (e.g. 'example.com/MyName')"]
    if slash and not prefix:
        complaints.append("prefix part must be non-empty")
    elif prefix:
        complaints += [f"prefix part {complaint}" for complaint in dns_subdomain(prefix)]
    if not name:
        complaints.append("name part must be non-empty")
    else:
        complaints += [f"name part {complaint}" for complaint in _too_long(name, 63)]
    if not re.fullmatch(_QUALIFIED, name):
        complaints.append(f"name part {_QUALIFIED_HELP}")
    return complaints


_QUALIFIED_HELP: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_QUALIFIED}')"
)


def label_value(value: str) -> list[str]:
    """`IsValidLabelValue`."""
    complaints = _too_long(value, 63)
    if not re.fullmatch(_VALUE, value):
        complaints.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', "
            "'_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
            "'12345', regex used "
            f"for validation is '{_VALUE}')"
        )
    return complaints


def port_number(value: int) -> list[str]:
    """`IsValidPortNum`."""
    return [] if 1 <= value <= 65535 else ["must be between 1 and 65535, inclusive"]


def port_name(value: str) -> list[str]:
    """`IsValidPortName`."""
    complaints = []
    if len(value) > 15:
        complaints.append("must be no more than 15 characters")
    if not re.fullmatch(r"[-a-z0-9]+", value):
        complaints.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", value):
        complaints.append("must contain at least one letter (a-z)")
    if "--" in value:
        complaints.append("must not contain consecutive hyphens")
    if value and "-" in (value[0], value[-1]):
        complaints.append("must not begin or end with a hyphen")
    return complaints


def parse_cidr(value: str) -> Network | None:
    """The network of a CIDR, or None. Host bits may be set."""
    if not _CIDR.match(value):
        return None
    try:
        return ipaddress.ip_network(value, strict=False)
    except ValueError:
        return None


def cidr_block(value: str) -> list[str]:
    """`IsValidCIDRForLegacyField`."""
    if parse_cidr(value) is None:
        return ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
    return []


def host_bits(value: str) -> list[str]:
    """What `IsValidCIDR` asks beyond that: no bits after the prefix."""
    network = parse_cidr(value)
    if network is not None:
        address = ipaddress.ip_address(value.partition("/")[0])
        if address != network.network_address:
            return ["must not have bits set beyond the prefix length"]
    return []


def is_address(value: str) -> bool:
    """Whether `value` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _too_long(value: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(value.encode()) > limit else []


def check(path: str, value: Any, rule: Callable[[Any], list[str]]) -> list[FieldError]:
    """Each complaint of `rule` about `value`, as an error of the field `path`."""
    return [invalid_value(path, value, complaint) for complaint in rule(value)]
